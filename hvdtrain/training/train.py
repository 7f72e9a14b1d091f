"""One training run from options to result: build the learner, resume, run the loop, write the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.preparation import prepare
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.tasks.registry import load_target
from hvdtrain.tasks.user import UserTask
from hvdtrain.training import result
from hvdtrain.training.run import Findings, RunContext
from hvdtrain.training.start import AlreadyFinished, check_trackers, start_run


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
