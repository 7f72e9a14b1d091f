"""A run that is ready for its first step: started with the ranks that exist now, or resumed."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.reader import Reader
from hvdtrain.errors import Stopped
from hvdtrain.interfaces import Dataset, Learner, Position
from hvdtrain.runs import metrics, record
from hvdtrain.runs.console import log, log_to_file
from hvdtrain.runs.lock import RunLock
from hvdtrain.runs.metrics import MetricsReader
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.phases import phases
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import printable
from hvdtrain.tasks.target import Target
from hvdtrain.training import arithmetic, consistency
from hvdtrain.training.batches import Batches
from hvdtrain.training.loop import Training
from hvdtrain.training.observer import Observer
from hvdtrain.training.ranks import Ranks, StopRequest
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import Run
from hvdtrain.training.state import Saver, must_write, resume
from hvdtrain.training.timing import StepTimer, Throughput
from hvdtrain.training.watchdog import Watchdog

if TYPE_CHECKING:
    from hvdtrain.runs.trackers.tracking import Tracking
    from hvdtrain.training.tracing import Tracing

Findings = list[dict[str, Any]]
"""What the doctor's checks found on this host: `status`, `text`, `remedy` and more of each."""


def check_trackers(runtime: RuntimeOptions) -> None:
    """Before anything that takes long: raise UserError, on rank 0, for a tracker that cannot be used."""
    if runtime.trackers and rank_info.detect().rank == 0:
        from hvdtrain.runs import trackers

        trackers.check(runtime.trackers)


class AlreadyFinished(Exception):
    """A run to resume has its last step and its result: there is nothing to do, and its folder stays as it is.

    at: its last position. Its weights are in the learner.
    """

    def __init__(self, run: Run, at: Position) -> None:
        super().__init__(run, at)
        self.run, self.at = run, at


class StartedRun:
    """A run that is ready for its first step: the loop, and all who watch it.

    start: where it begins. track: called on rank 0 with each record of metrics. reader: of the run's data.
    """

    def __init__(self, run: Run, start: Start, track: Callable[[dict[str, Any]], None], reader: Reader) -> None:
        timer, at = StepTimer(run.group), start.position
        phases.start_run(run.learner.between_steps, timer.on_step_time)
        self.run, self.batches, self.throughput = run, Batches(run, reader), Throughput()
        if at.step >= run.last_step:  # the process that made the steps has ended before it wrote their result
            self.throughput.recall(MetricsReader(run.folder / metrics.NAME).read().of_kind("train"), run.global_batch)
        self.stop = StopRequest(run.folder, run.group)
        self.watchdog = Watchdog(run.folder, run.group, run.runtime.hang_timeout, timer, lambda: self.batches.rows)
        self.reporter = Reporter(run, at, track, self.batches, self.throughput)
        observers: list[Observer] = [self.watchdog, self.reporter, self.throughput]
        self.tracing: Tracing | None = None
        if run.runtime.timeline and not start.joins:
            from hvdtrain.training.tracing import Tracing

            self.tracing = Tracing(run, self.reporter.show)
            observers.append(self.tracing)
        ranks = Ranks(run, self.batches, timer.take, self.stop)
        ranks.pending = start.losses
        self.training = Training(run, at, self.batches, ranks, Saver(run, start.parent), observers)
        self.training.is_settled = start.is_settled
        self.survivors = Survivors(run, self.training, ranks, self._take_over)
        self.stack = contextlib.ExitStack()
        """What ends with the run."""
        self.compile_s = 0.0
        """Seconds that this rank took to compile its step."""

    @property
    def at(self) -> Position:
        """Where training is."""
        return self.training.at

    def _take_over(self) -> None:
        """On a new rank 0: have the run's folder, its console and its trackers, as the one that is lost had them."""
        run = self.run
        if not run.is_rank_0 or run.lock.is_held:
            return
        run.lock.acquire(run.folder)
        open_log(run.folder, run.group, run.runtime)
        if run.runtime.trackers:
            from hvdtrain.runs.trackers.tracking import Tracking

            with contextlib.suppress(OSError, ValueError):  # config.json of a folder that does not respond
                content = read_json(run.folder / "config.json")
                tracking = Tracking(run.runtime.trackers, run.folder, content, self.at.step)
                self.stack.enter_context(tracking.until_end())
                self.reporter.track = tracking.log

    def end_steps(self) -> None:
        """No more steps follow: the timeline is written, if there is one."""
        if self.tracing:
            self.tracing.ended()

    def compile(self) -> None:
        """Compile the learner's step, if --compile asks for it, before any of it is timed.

        A rank that cannot compile logs why, and trains uncompiled. No rank waits for the others here.
        """
        run = self.run
        if not run.config.compile:
            return
        try:
            self.compile_s = run.learner.compile(run.dataset.train[np.arange(-(-run.global_batch // run.group.size))])
        except Exception as error:  # of a kind that PyTorch does not document
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            log.warning("--compile: training continues uncompiled: %s", reason)
            log_to_file(logging.INFO, traceback.format_exc())
        if self.compile_s:
            self.reporter.show(f"compiled the step in {self.compile_s:.1f} s")


@contextlib.contextmanager
def start_run(
    config: Config,
    runtime: RuntimeOptions,
    target: Target,
    learner: Learner,
    dataset: Dataset,
    examine_host: Callable[[], Findings],
    replays: bool = False,
) -> Iterator[StartedRun]:
    """Start a run, resume it, or join the ranks that train it; inside, its folder is locked and its log open.

    replays: see `resume`. Raises what `train` raises, and AlreadyFinished.
    """
    reader = Reader(dataset, runtime.workers, target.loader_spec, config.seed, target.labels)
    with RunLock() as lock, contextlib.closing(learner), contextlib.ExitStack() as reading:
        run = Run(config, runtime, target, learner, dataset, Path(), lock)
        if isinstance(learner.group, SurvivingGroup):
            reading.enter_context(reader)  # before the others wait for this rank
            run, start, tracking = _begin_or_join(run, learner.group, reader, examine_host)
        else:
            run, start, tracking = _begin(run, examine_host, replays)
            reading.enter_context(reader)
        started = StartedRun(run, start, tracking.log if tracking else lambda record: None, reader)
        with (
            tracking.until_end() if tracking else contextlib.nullcontext(),
            started.stack,
            started.stop,
            started.watchdog,
            contextlib.closing(started.reporter),
            recorded_end(run),
        ):
            started.reporter.introduce()
            try:
                yield started
            except Stopped:
                started.end_steps()
                raise


Begun = tuple[Run, Start, "Tracking | None"]


def _begin(run: Run, examine_host: Callable[[], Findings], replays: bool = False) -> Begun:
    """Start or resume a run together with the other ranks. run: without a folder."""
    config, runtime, target, learner, dataset = run.config, run.runtime, run.target, run.learner, run.dataset
    consistency.check_same_options(run.group, config, runtime, target, dataset.fingerprint)
    if config.shards:
<<<<<<< HEAD
        arithmetic.check_same_on_ranks(run.group, run.arithmetic)
    start = resume(config, runtime, target, learner, dataset, run.lock, replays)
    run = dataclasses.replace(run, folder=start.folder)
    if start.is_finished:
        _leave_as_it_is(run, start.position)
    if run.is_rank_0:
        checkpoint = str(start.parent.path) if start.parent else ""
        agent_pipe.send(OpenedRun(os.path.abspath(run.folder), runtime.auto_resume, checkpoint))
    return run, start, _start_records(run, start.position, examine_host)


def _begin_or_join(run: Run, group: SurvivingGroup, reader: Reader, examine_host: Callable[[], Findings]) -> Begun:
    """In a job that survives lost ranks: `_begin` with all ranks, or join those that train already."""
    if group.is_replacement:
        _warm_up(run, reader)
    group.join()
    while True:
        try:
            agreement = agree(group, Standing())
            if agreement.root >= 0:
                return _join(run, group, agreement)
            run.learner.load(broadcast_arrays(group, run.learner.weights()))
            return _begin(run, examine_host)
        except RanksChanged as change:
            group.renew(change)


def _join(run: Run, group: SurvivingGroup, agreement: Agreement) -> Begun:
    """Go on with the others, who train already, from their state."""
    config, learner = run.config, run.learner
    given = receive(group, agreement, config, run.runtime, run.target, learner, run.dataset)
    run = dataclasses.replace(run, folder=given.folder)
    open_log(run.folder, group, run.runtime)
    log.info("rank %d joins %d others at step %d", rank_of(group), group.size - 1, agreement.step)
    run.not_finite_at_first.update(consistency.not_finite(learner.weights()))
    start = Start(given.folder, given.state.position, losses=given.losses, is_settled=agreement.is_settled, joins=True)
    return run, start, None


def _warm_up(run: Run, reader: Reader) -> None:
    """Make a step alone, before the others wait for this rank: frameworks need longer for the first one."""
    learner, at = run.learner, Position(global_batch=run.global_batch, seed=run.config.seed)
    if run.target.kind == "script":  # whose loop makes the steps
        return
    weights = {name: array.copy() for name, array in learner.weights().items()}
    state = learner.optimizer_state()
    before = state._replace(arrays={name: array.copy() for name, array in state.arrays.items()})
    for batch in Batches(run, reader).of_epoch(at, 1):
        learner.train_step(batch)
    learner.load(weights)
    learner.load_optimizer_state(before)
    learner.skipped = 0
=======
        arithmetic.check_same_on_ranks(learner.group, arithmetic.record(config, learner))
    with RunLock() as lock, contextlib.closing(learner):
        folder, position, parent, is_finished = resume(config, runtime, target, learner, dataset, lock, replays)
        run = Run(config, runtime, target, learner, dataset, folder, lock)
        if is_finished:
            _leave_as_it_is(run, position)
        if run.is_rank_0:
            checkpoint = str(parent.path) if parent else ""
            agent_pipe.send(OpenedRun(os.path.abspath(folder), runtime.auto_resume, checkpoint))
        with Reader(dataset, runtime.workers, target.loader_spec, config.seed, target.labels) as reader:
            tracking = _start_records(run, position, examine_host)
            track = tracking.log if tracking else lambda record: None
            started = StartedRun(run, position, Saver(run, parent), track, reader)
            with (
                tracking.until_end() if tracking else contextlib.nullcontext(),
                started.stop,
                started.watchdog,
                contextlib.closing(started.reporter),
                recorded_end(run),
            ):
                started.reporter.introduce()
                try:
                    yield started
                except Stopped:
                    started.end_steps()
                    raise
>>>>>>> main


def _leave_as_it_is(run: Run, at: Position) -> NoReturn:
    """Say that there is nothing to do, end the communication with the other ranks, and raise AlreadyFinished."""
    if run.is_rank_0 and not run.runtime.quiet:
        print(
            f"nothing to do: {printable(str(run.folder))} has finished, at step {at.step} of {run.last_step}; "
            "to train further, raise --epochs or --max-steps",
            file=sys.stderr,
            flush=True,
        )
    run.group.close()
    raise AlreadyFinished(run, at)


def _start_records(run: Run, position: Position, examine_host: Callable[[], Findings]) -> Tracking | None:
    """Compare the ranks' weights, and begin to write what the run records; returns who hands it to trackers."""
    weights = run.learner.weights()
    run.not_finite_at_first.update(consistency.not_finite(weights))
    parameters = consistency.check_same_weights(run.group, run.common(weights), "before the first step")
    log.info("rank %d of %d starts with parameters %s", run.group.rank, run.group.size, parameters)
    if run.config.shards:
        arithmetic.warn_of_processors(run.group, run.arithmetic)
    with must_write("the record of this run", run.folder):
        content = _write_record(run, examine_host) if run.is_rank_0 else {}
        if not run.is_rank_0 or not run.runtime.trackers:
            return None
        from hvdtrain.runs.trackers.tracking import Tracking

        return Tracking(run.runtime.trackers, run.folder, content, position.step)


def _write_record(run: Run, examine_host: Callable[[], Findings]) -> dict[str, Any]:
    """Write what is known before the first step; the content of `config.json`."""
    target = run.target.record()
    bits = {name: value for name, value in run.arithmetic.items() if name not in arithmetic.ELSEWHERE}
    data = run.dataset.fingerprint[: record.FINGERPRINT_DIGITS]
    written = record.write_options(
        run.folder, run.recorded_options, run.runtime, target, run.learner, run.last_step, bits, data
    )
    findings = examine_host()
    record.write_json(run.folder / "doctor.json", {"findings": findings})
    for finding in findings:
        if finding["status"] == "fail":
            log.warning("%s; %s", finding["text"], finding["remedy"])
    return written


@contextlib.contextmanager
def recorded_end(run: Run) -> Iterator[None]:
<<<<<<< HEAD
    """Around training and its result: rank 0 records the end, and of an error the rank that has it first.

    Of a job that survives lost ranks, errors are not recorded here: the launcher knows whether training goes on.
    """
=======
    """Around training and its result: rank 0 records the end, and of an error the rank that has it first."""
>>>>>>> main
    if run.is_rank_0:
        RunEnd.remove(run.folder)
    try:
        yield
    except Exception as error:
        end = RunEnd.of_exception(error).on_rank(run.group.rank, run.group.size)
        if end.status == "stopped":
            if run.is_rank_0:
                end.write(run.folder)
<<<<<<< HEAD
        elif not isinstance(run.group, SurvivingGroup):
=======
        else:
>>>>>>> main
            end.write(run.folder, replace=False)  # a rank that lost another one fails after it: the first one stays
        raise
    if run.is_rank_0:
        RunEnd("finished").write(run.folder)
