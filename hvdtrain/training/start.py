"""A run that is ready for its first step: started with the ranks that exist now, or resumed."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtrain.collectives.surviving import SurvivingGroup, rank_of
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.reader import Reader
from hvdtrain.errors import Stopped
from hvdtrain.interfaces.learner import Learner, Position
from hvdtrain.interfaces.reading import Dataset
from hvdtrain.runs import metrics
from hvdtrain.runs.console import log, log_to_file
from hvdtrain.runs.lock import RunLock
from hvdtrain.runs.metrics import MetricsReader
from hvdtrain.system import checkpoint_folder, rank_info
from hvdtrain.system.files import read_json
from hvdtrain.system.phases import phases
from hvdtrain.system.run_end import RunEnd
from hvdtrain.tasks.target import Target
from hvdtrain.training.audit import Auditor
from hvdtrain.training.balancing import Balancing
from hvdtrain.training.batches import Batches
from hvdtrain.training.begin import Findings, begin, begin_or_join, start_tracking, write_records
from hvdtrain.training.local_steps import LocalSteps
from hvdtrain.training.loop import TrainingLoop
from hvdtrain.training.observer import Observer
from hvdtrain.training.ranks import IntervalCollector, StopRequest
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import RunContext
from hvdtrain.training.saver import Saver
from hvdtrain.training.state import Start, open_log
from hvdtrain.training.survival import Survivors
from hvdtrain.training.timing import StepTimer, Throughput
from hvdtrain.training.trial import try_out
from hvdtrain.training.watchdog import Watchdog

if TYPE_CHECKING:
    from hvdtrain.training.tracing import Tracing


def check_trackers(runtime: RuntimeOptions) -> None:
    """Before anything that takes long: raise UserError, on rank 0, for a tracker that cannot be used."""
    if runtime.tracker and rank_info.detect().rank == 0:
        from hvdtrain.runs import trackers

        trackers.check(runtime.tracker)


class StartedRun:
    """A run that is ready for its first step: the loop, and all who watch it.

    start: where it begins. track: called on rank 0 with each record of metrics. reader: of the run's data.
    examine_host: see `train`.
    """

    def __init__(
        self,
        run: RunContext,
        start: Start,
        track: Callable[[dict[str, Any]], None],
        reader: Reader,
        examine_host: Callable[[], Findings],
    ) -> None:
        timer, at = StepTimer(run.group), start.position
        phases.start_run(run.learner.between_steps, timer.on_step_time)
        self.run, self.batches, self.throughput = run, Batches(run, reader), Throughput()
        self._examine_host = examine_host
        if run.is_over(at):  # the process that made the steps has ended before it wrote their result
            self.throughput.recall(MetricsReader(run.folder / metrics.NAME).read().of_kind("train"), run.global_batch)
        self.stop = StopRequest(run.folder, run.group)
        self.watchdog = Watchdog(run.folder, run.group, run.runtime.hang_timeout, timer, lambda: self.batches.rows)
        self.reporter = Reporter(run, at, track, self.batches, self.throughput)
        observers: list[Observer] = [self.watchdog, self.reporter, self.throughput, Balancing(run, self.reporter)]
        self.tracing: Tracing | None = None
        if run.runtime.timeline:
            from hvdtrain.training.tracing import Tracing

            self.tracing = Tracing(run, self.reporter.show)
            observers.append(self.tracing)
        ranks = IntervalCollector(run, self.batches, timer.take, self.stop)
        self.logged = ranks.logged
        self.auditor = Auditor(run, self.batches, self.reporter)
        ranks.losses = start.losses
        survives = isinstance(run.group, SurvivingGroup)
        first = checkpoint_folder.next_number(run.folder / "checkpoints") if survives else None
        saver = Saver(run, start.parent, first)
        self.training = TrainingLoop(run, at, self.batches, ranks, saver, self.auditor, observers)
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
        tracking = None
        if not (run.folder / "config.json").exists():  # it was lost before it had written that
            tracking = write_records(run, self.at, self._examine_host)
        elif run.runtime.tracker:
            with contextlib.suppress(OSError, ValueError):  # config.json of a folder that does not respond
                tracking = start_tracking(run, read_json(run.folder / "config.json"), self.at)
        if tracking:
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
        local_steps = LocalSteps(learner) if config.sync_every > 1 else None
        run = RunContext(config, runtime, target, learner, dataset, Path(), lock, local_steps=local_steps)
        try_out(run)
        learner.set_length(config.epochs * run.steps_per_epoch, config.epochs)
        if isinstance(learner.group, SurvivingGroup):
            reading.enter_context(reader)  # before the others wait for this rank
            run, start, tracking = begin_or_join(run, learner.group, reader, examine_host)
        else:
            run, start, tracking = begin(run, examine_host, replays)
            reading.enter_context(reader)
        started = StartedRun(run, start, tracking.log if tracking else lambda record: None, reader, examine_host)
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
        end = RunEnd.of_exception(error).on_rank(rank_of(run.group), run.group.size)
        if end.status == "stopped":
            if run.is_rank_0:
                end.write(run.folder)
        elif not isinstance(run.group, SurvivingGroup):
            end.write(run.folder, replace=False)  # a rank that lost another one fails after it: the first one stays
        raise
    if run.is_rank_0:
        RunEnd("finished").write(run.folder)
