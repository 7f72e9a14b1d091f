"""One training run: all ranks start or resume it together, or a rank joins others that train; then loop and result."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, cast

import numpy as np

from hvdtrain.collectives.arrays import broadcast_arrays
from hvdtrain.collectives.surviving import SurvivingGroup
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.reader import Reader
from hvdtrain.frameworks.preparation import prepare
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs.console import log, log_to_file
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import printable
from hvdtrain.tasks.registry import load_target
from hvdtrain.tasks.user import UserTask
from hvdtrain.training import consistency, result
from hvdtrain.training.batches import Batches
from hvdtrain.training.loop import TrainingLoop
from hvdtrain.training.run import Findings, RunContext
from hvdtrain.training.state import Start, restoring, resume
from hvdtrain.training.survival import agree, join_others, together
from hvdtrain.training.trial import try_out
from hvdtrain.training.watchdog import MIN_LIMIT_S


def train(
    config: Config, runtime: RuntimeOptions, examine_host: Callable[[], Findings], task: UserTask | None = None
) -> Path:
    """Train with these options; returns the run's folder. A run to resume that has finished stays as it is.

    examine_host: called once on rank 0; what it finds goes into the run's record, and failures into the log. task: what
    to train instead of what --model names.
    Raises UserError if the options, the data or the installation do not allow it, TrainingError if training fails,
    Stopped if the job was asked to stop.
    """
    check_trackers(runtime)
    prepare(config.framework)  # the file of a task imports it
    target, dataset = (task, task.dataset) if task else load_target(config, runtime)

    learner = build_learner(config, target, target.initial_weights(config), runtime)

    try:
        with start_run(RunContext(config, runtime, target, learner, dataset, examine_host)) as training:
            training.train(lambda: result.finish(training))
    except AlreadyFinished as finished:
        return finished.run.folder
    return training.run.folder


class AlreadyFinished(Exception):
    """A run to resume has its last step and its result: there is nothing to do, and its folder stays as it is.

    at: its last position. Its weights are in the learner.
    """

    def __init__(self, run: RunContext, at: Position) -> None:
        super().__init__(run, at)
        self.run, self.at = run, at


def check_trackers(runtime: RuntimeOptions) -> None:
    """Before anything that takes long: raise UserError, on rank 0, for a tracker that cannot be used."""
    if runtime.tracker and rank_info.detect().rank == 0:
        from hvdtrain.runs import trackers

        trackers.check(runtime.tracker)


@contextlib.contextmanager
def start_run(run: RunContext, replays: bool = False) -> Iterator[TrainingLoop]:
    """Start a run, resume it, or join the ranks that train it; inside, its folder is locked and its log open.

    run: without a folder. replays: see `resume`. Raises what `train` raises, and AlreadyFinished.
    """
    config, target = run.config, run.target
    reader = Reader(run.dataset, run.runtime.workers, target.loader_spec, config.seed, target.labels)
    with contextlib.closing(run.learner), contextlib.ExitStack() as stack:
        stack.enter_context(run.lock)
        run.check_data()
        try_out(run)
        run.learner.set_length(config.epochs * run.steps_per_epoch, config.epochs)
        stack.enter_context(reader)  # before other ranks wait for this one
        training = TrainingLoop(run, _begin_or_join(run, reader, replays), reader, stack)
        stack.enter_context(recorded_end(run))
        _introduce(training)
        yield training


def _introduce(training: TrainingLoop) -> None:
    """Say what is trained, and compile the learner's step, if --compile asks for it, before any of it is timed.

    A rank that cannot compile logs why, and trains uncompiled. No rank waits for the others here.
    """
    training.reporter.introduce()
    run = training.run
    if not run.config.compile:
        return
    rows = run.dataset.train[np.arange(-(-run.global_batch // run.group.size))]
    try:
        training.compile_s = run.learner.compile(rows)
    except Exception as error:  # of a kind that PyTorch does not document
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        log.warning("--compile: training continues uncompiled: %s", reason)
        log_to_file(logging.INFO, traceback.format_exc())
    if training.compile_s:
        training.reporter.show(f"compiled the step in {training.compile_s:.1f} s")


def _begin_or_join(run: RunContext, reader: Reader, replays: bool) -> Start:
    """Start or resume a run together with the other ranks, or join those that train it already."""
    if not run.group.survives:
        return _begin(run, replays)
    group = cast(SurvivingGroup, run.group)
    if group.is_replacement:
        _warm_up(run, reader)
    group.join(max(run.runtime.hang_timeout, MIN_LIMIT_S))

    def begin_or_join() -> Start:
        agreement = agree(group)
        if agreement.root >= 0:
            start = join_others(run, agreement)
        else:
            run.learner.load(broadcast_arrays(group, run.learner.weights()))
            start = _begin(run, replays)
        group.trains()
        return start

    start, _ = together(group, begin_or_join)
    group.connect_limit_s = math.inf  # from now on the watchdog notices ranks that do not come
    return start


def _begin(run: RunContext, replays: bool) -> Start:
    """Start or resume a run together with the other ranks. run: without a folder."""
    consistency.check_same_options(run.group, run.shared_values | consistency.settings(run.learner))
    if run.in_shards:
        consistency.check_same_arithmetic(run.group, run.arithmetic)
    start = resume(run, replays)
    if start.is_finished:
        _leave_as_it_is(run, start.position)
    if run.local_steps:
        run.local_steps.begin(start.position.step)
    if run.is_rank_0:
        agent_pipe.send(OpenedRun(str(run.folder), run.runtime.auto_resume, str(start.resumed or "")))
    weights = run.learner.weights()
    run.not_finite_at_first.update(consistency.not_finite(weights))
    parameters = run.check_same_weights(start.position.step, "before the first step", weights)
    log.info("rank %d of %d starts with parameters %s", run.group.place, run.group.size, parameters)
    if run.in_shards:
        consistency.warn_of_processors(run.group, run.arithmetic)
    return start


def _warm_up(run: RunContext, reader: Reader) -> None:
    """Make a step alone, before the others wait for this rank: frameworks need longer for the first one."""
    learner, at = run.learner, Position(global_batch=run.global_batch, seed=run.config.seed)
    if run.target.kind == "script":  # whose loop makes the steps
        return
    with restoring(learner, with_optimizer=True):
        for batch in Batches(run, reader).of_epoch(at, 1):
            learner.train_step(batch)
    learner.skipped = 0


def _leave_as_it_is(run: RunContext, at: Position) -> NoReturn:
    """Say that there is nothing to do, end the communication with the other ranks, and raise AlreadyFinished."""
    waited = at.has_waited(run.config.patience, run.config.score_choice)
    options = "--patience" if waited else "--epochs or --max-steps"
    if run.is_rank_0 and not run.runtime.quiet:
        print(
            f"nothing to do: {printable(f'{run.folder}')} has finished, at step {at.step} of {run.last_step}; "
            f"to train further, raise {options}",
            file=sys.stderr,
            flush=True,
        )
    run.group.close()
    raise AlreadyFinished(run, at)


@contextlib.contextmanager
def recorded_end(run: RunContext) -> Iterator[None]:
    """Around training and its result: rank 0 records the end, and of an error the rank that has it first.

    Of a job that survives lost ranks, errors are not recorded here: the launcher knows whether training goes on.
    """
    if run.is_rank_0:
        RunEnd.remove(run.folder)
    try:
        yield
    except Exception as error:
        end = RunEnd.of_exception(error).on_rank(run.group.place, run.group.size)
        if end.status == "stopped":
            if run.is_rank_0:
                end.write(run.folder)
        elif not run.group.survives:
            end.write(run.folder, replace=False)  # a rank that lost another one fails after it: the first one stays
        raise
    if run.is_rank_0:
        RunEnd("finished").write(run.folder)
