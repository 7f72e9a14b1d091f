"""One training run from options to result: build the learner, resume, run the loop, write the result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.datasets.reader import Reader
from hvdtrain.frameworks.registry import build_learner, run_elastic
from hvdtrain.interfaces import Dataset, ElasticMemory, Position
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.runs import record
from hvdtrain.runs.console import log
from hvdtrain.runs.lock import RunLock
from hvdtrain.tasks.own import OwnTask
from hvdtrain.tasks.registry import Trainable, data_recipe, load_trainable, record_of
from hvdtrain.training import consistency, result
from hvdtrain.training.loop import Training
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.resume import resume
from hvdtrain.training.run import Run
from hvdtrain.training.saving import Saver, must_write

Findings = list[dict[str, Any]]
"""What the doctor's checks found on this host: `status`, `text`, `remedy` and more of each."""


def train(
    config: Config, runtime: RuntimeOptions, examine_host: Callable[[], Findings], task: OwnTask | None = None
) -> Path:
    """Train with these options; returns the run's folder.

    examine_host: called once on rank 0; what it finds goes into the run's record, and failures into the log. task: what
    to train instead of what --model names.
    Raises UserError if the options, the data or the installation do not allow it, TrainingError if training fails,
    Stopped if the job was asked to stop.
    """
    trained, dataset = (task, task.dataset) if task else load_trainable(config, runtime)

    def train_with(memory: ElasticMemory | None) -> Path:
        with RunLock() as lock:
            return _train(config, runtime, trained, dataset, examine_host, lock, memory)

    return run_elastic(config, train_with) if runtime.elastic else train_with(None)


def _train(
    config: Config,
    runtime: RuntimeOptions,
    trained: Trainable,
    dataset: Dataset,
    examine_host: Callable[[], Findings],
    lock: RunLock,
    memory: ElasticMemory | None,
) -> Path:
    """Train with the ranks that exist now. An elastic job calls this again, with its memory, after each change."""
    weights = None if isinstance(trained, OwnTask) else initial_weights(trained, config.init, config.seed)
    learner = build_learner(config, trained, weights, runtime)
    consistency.check_same_options(learner.group, config, runtime, trained, dataset.fingerprint)
    folder, position, parent = resume(config, runtime, trained, learner, dataset, lock, memory)
    run = Run(config, runtime, trained, learner, dataset, folder, lock)
    recipe = trained.recipe if isinstance(trained, OwnTask) else data_recipe(config, runtime, trained.network)
    with Reader(dataset, runtime.workers, recipe, config.seed) as reader:
        _train_from(run, position, reader, Saver(run, memory, parent), examine_host)
    return folder


def _train_from(
    run: Run, position: Position, reader: Reader, saver: Saver, examine_host: Callable[[], Findings]
) -> None:
    """Train from `position` to the end, and write the result."""
    parameters = consistency.check_same_weights(run.group, run.common_weights(), "before the first step")
    log.info("rank %d of %d starts with parameters %s", run.group.rank, run.group.size, parameters)
    with must_write("the record of this run", run.folder):
        if run.is_rank_0:
            _write_record(run, examine_host)
        reporter = Reporter(run, position.step)
    training = Training(run, position, reader, reporter, saver)
    with training.stop, training.watchdog:
        with contextlib.closing(reporter):
            scores = training.run()
        result.write(run, scores, training, reporter)
        run.group.close()


def _write_record(run: Run, examine_host: Callable[[], Findings]) -> None:
    record.write_options(run.folder, run.config, run.runtime, record_of(run.trained), run.learner)
    findings = examine_host()
    record.write_json(run.folder / "doctor.json", {"findings": findings})
    for finding in findings:
        if finding["status"] == "fail":
            log.warning("%s; %s", finding["text"], finding["remedy"])
