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
from hvdtrain.training.balancing import Balancing
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

    track: called on rank 0 with each record of metrics. reader: of the run's data.
    """

    def __init__(
        self, run: Run, at: Position, saver: Saver, track: Callable[[dict[str, Any]], None], reader: Reader
    ) -> None:
        timer = StepTimer(run.group)
        phases.start_run(run.learner.between_steps, timer.on_step_time)
        self.run, self.batches, self.throughput = run, Batches(run, reader), Throughput()
        if at.step >= run.last_step:  # the process that made the steps has ended before it wrote their result
            self.throughput.recall(MetricsReader(run.folder / metrics.NAME).read().of_kind("train"), run.global_batch)
        self.stop = StopRequest(run.folder, run.group.rank)
        self.watchdog = Watchdog(
            *(run.folder, run.group.rank, run.group.size, run.runtime.hang_timeout, timer, lambda: self.batches.rows)
        )
        self.reporter = Reporter(run, at, track, self.batches, self.throughput)
        observers: list[Observer] = [self.watchdog, self.reporter, self.throughput, Balancing(run, self.reporter)]
        self.tracing: Tracing | None = None
        if run.runtime.timeline:
            from hvdtrain.training.tracing import Tracing

            self.tracing = Tracing(run, self.reporter.show)
            observers.append(self.tracing)
        ranks = Ranks(run, self.batches, timer.take, self.stop)
        self.training = Training(run, at, self.batches, ranks, saver, observers)
        self.compile_s = 0.0
        """Seconds that this rank took to compile its step."""

    @property
    def at(self) -> Position:
        """Where training is."""
        return self.training.at

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
    """Start a run with the ranks that exist now, or resume it; inside, its folder is locked and its log open.

    replays: see `resume`. Raises what `train` raises, and AlreadyFinished.
    """
    consistency.check_same_options(learner.group, config, runtime, target, dataset.fingerprint)
    if config.shards:
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
    """Around training and its result: rank 0 records the end, and of an error the rank that has it first."""
    if run.is_rank_0:
        RunEnd.remove(run.folder)
    try:
        yield
    except Exception as error:
        end = RunEnd.of_exception(error).on_rank(run.group.rank, run.group.size)
        if end.status == "stopped":
            if run.is_rank_0:
                end.write(run.folder)
        else:
            end.write(run.folder, replace=False)  # a rank that lost another one fails after it: the first one stays
        raise
    if run.is_rank_0:
        RunEnd("finished").write(run.folder)
