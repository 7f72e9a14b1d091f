"""Where the time of a training step goes (`--profile`): computing, communicating, and the loop with its data."""

from __future__ import annotations

import itertools
import time
from typing import SupportsFloat

import numpy as np

from hvdtrain.frameworks.registry import build_without_communication
from hvdtrain.interfaces import Batch, FitLearner
from hvdtrain.training.compilation import compile_step
from hvdtrain.training.run import Run
from hvdtrain.training.throughput import Throughput
from hvdtrain.training.watchdog import END, Watchdog


def step_shares(run: Run, throughput: Throughput, watchdog: Watchdog) -> dict[str, float]:
    """Shares of a step, means over ranks: `compute`, `communicate` and `data`; call it on every rank.

    `data` is the loop's own time, measured in training. `compute` is measured here without any communication, and
    `communicate` is the rest of the step. So what a strategy hides behind computing counts as computing. One process
    on one device does not communicate, so all that is not `data` is `compute`.
    """
    data = throughput.outside_share
    if run.group.size * run.learner.devices == 1:
        return {"compute": 1 - data, "communicate": 0.0, "data": data}
    compute = min(_seconds_without_communication(run, watchdog) / throughput.seconds_per_step, 1 - data)
    compute, data = run.group.sum(np.array([compute, data])) / run.group.size
    return {"compute": compute, "communicate": max(1 - compute - data, 0.0), "data": data}


def _seconds_without_communication(run: Run, watchdog: Watchdog) -> float:
    """Median seconds of a step on as many rows as one device gets, all ranks computing at the same time."""
    watchdog.compiling()
    learner = build_without_communication(run.config, run.learner.weights(), run.runtime, run.group)
    rows = max(run.global_batch // (run.group.size * run.learner.devices), 1)
    compile_step(run.config, learner, rows)
    images, labels = run.dataset.train_images[:rows], run.dataset.train_labels[:rows]
    batch = Batch(images, labels, np.full(len(images), 1 / len(images), np.float32), 0.0)
    ends, starts = [], []

    def after_step(_: SupportsFloat) -> None:
        learner.weights()  # waits for the update; the loss alone would not
        ends.append(time.perf_counter())
        watchdog.progress(run.last_step, END, len(ends))
        run.group.sum(np.zeros(1))  # all ranks start together, and slow each other down as in training
        starts.append(time.perf_counter())

    steps = 1 + run.runtime.profile
    if isinstance(learner, FitLearner):
        learner.fit(itertools.repeat(batch, steps), steps, after_step)
    else:
        for _ in range(steps):
            after_step(learner.train_step(*batch))
    return float(np.median(np.subtract(ends[1:], starts[:-1])))  # the first step compiles
