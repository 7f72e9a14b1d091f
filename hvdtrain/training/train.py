"""One training run from options to result: build the learner, resume, run the loop, write the result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.reader import Reader
from hvdtrain.frameworks.registry import build_learner, run_elastic
from hvdtrain.frameworks.requirements import prepare
from hvdtrain.interfaces import Dataset, ElasticMemory, Learner, Position
from hvdtrain.runs import record
from hvdtrain.runs.console import log
from hvdtrain.runs.lock import RunLock
from hvdtrain.runs.trackers import registry as trackers
from hvdtrain.runs.trackers.tracking import Tracking
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.tasks.registry import load_target
from hvdtrain.tasks.target import Target
from hvdtrain.tasks.user import UserTask
from hvdtrain.training import consistency, result
from hvdtrain.training.end import recorded_end
from hvdtrain.training.loop import Training
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.resume import resume
from hvdtrain.training.run import Run
from hvdtrain.training.saving import Saver, must_write

Findings = list[dict[str, Any]]
"""What the doctor's checks found on this host: `status`, `text`, `remedy` and more of each."""


def train(
    config: Config, runtime: RuntimeOptions, examine_host: Callable[[], Findings], task: UserTask | None = None
) -> Path:
    """Train with these options; returns the run's folder.

    examine_host: called once on rank 0; what it finds goes into the run's record, and failures into the log. task: what
    to train instead of what --model names.
    Raises UserError if the options, the data or the installation do not allow it, TrainingError if training fails,
    Stopped if the job was asked to stop.
    """
    check_trackers(runtime)
    prepare(config.framework)  # the file of a task imports it
    target, dataset = (task, task.dataset) if task else load_target(config, runtime)

    def train_with(memory: ElasticMemory | None) -> Path:
        learner = build_learner(config, target, target.initial_weights(config), runtime)
        with start_run(config, runtime, target, learner, dataset, examine_host, memory) as started:
            started.training.run(learner)
            started.finish()
        return started.run.folder

    return run_elastic(config, train_with) if runtime.elastic else train_with(None)


def check_trackers(runtime: RuntimeOptions) -> None:
    """Before anything that takes long: raise UserError, on rank 0, for a tracker that cannot be used."""
    if rank_info.detect().rank == 0:
        trackers.check(runtime.trackers)


class StartedRun(NamedTuple):
    """A run that is ready for its first step."""

    run: Run
    training: Training
    reporter: Reporter

    def finish(self) -> None:
        """Write the result, and leave the job in order; call it on every rank, after the last step.

        Raises TrainingError if ranks differ or the result cannot be written.
        """
        self.training.tracing.end()
        scores = self.training.final_scores()
        self.reporter.close()
        result.write(self.run, scores, self.training, self.reporter)
        self.run.group.close()


@contextlib.contextmanager
def start_run(
    config: Config,
    runtime: RuntimeOptions,
    target: Target,
    learner: Learner,
    dataset: Dataset,
    examine_host: Callable[[], Findings],
    memory: ElasticMemory | None = None,
) -> Iterator[StartedRun]:
    """Start a run with the ranks that exist now, or resume it; inside, its folder is locked and its log open.

    An elastic job calls this again, with its memory, after each change of its ranks. Raises what `train` raises.
    """
    consistency.check_same_options(learner.group, config, runtime, target, dataset.fingerprint)
    with RunLock() as lock:
        folder, position, parent = resume(config, runtime, target, learner, dataset, lock, memory)
        run = Run(config, runtime, target, learner, dataset, folder, lock)
        if run.is_rank_0:
            checkpoint = str(parent.path) if parent else ""
            agent_pipe.send(OpenedRun(os.path.abspath(folder), runtime.auto_resume, checkpoint))
        with _reader(run) as reader:
            saver = Saver(run, memory, parent)
            reporter, tracking = _start_records(run, position, examine_host)
            training = Training(run, position, reader, reporter, saver)
            with (
                tracking.until_end(runtime.elastic),
                training.stop,
                training.watchdog,
                contextlib.closing(reporter),
                recorded_end(run),
            ):
                yield StartedRun(run, training, reporter)


def _reader(run: Run) -> Reader:
    """Reads the rows of a run."""
    target = run.target
    return Reader(run.dataset, run.runtime.workers, target.loader_spec, run.config.seed, target.labels)


def _start_records(run: Run, position: Position, examine_host: Callable[[], Findings]) -> tuple[Reporter, Tracking]:
    """Compare the ranks' weights, and begin to write what the run records."""
    parameters = consistency.check_same_weights(run.group, run.common_weights(), "before the first step")
    log.info("rank %d of %d starts with parameters %s", run.group.rank, run.group.size, parameters)
    with must_write("the record of this run", run.folder):
        content = _write_record(run, examine_host) if run.is_rank_0 else {}
        tracking = Tracking(run.runtime.trackers if run.is_rank_0 else (), run.folder, content, position.step)
        return Reporter(run, position.step, tracking.log), tracking


def _write_record(run: Run, examine_host: Callable[[], Findings]) -> dict[str, Any]:
    """Write what is known before the first step; the content of `config.json`."""
    target = run.target.record()
    written = record.write_options(run.folder, run.recorded_options, run.runtime, target, run.learner, run.last_step)
    findings = examine_host()
    record.write_json(run.folder / "doctor.json", {"findings": findings})
    for finding in findings:
        if finding["status"] == "fail":
            log.warning("%s; %s", finding["text"], finding["remedy"])
    return written
