"""Where the time of a training step goes (`--profile`): computing, communicating, and the loop with its data."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import Batch, Learner
from hvdtrain.training.run import Run
from hvdtrain.training.throughput import Throughput
from hvdtrain.training.watchdog import END, Watchdog


def step_shares(run: Run, throughput: Throughput, watchdog: Watchdog) -> dict[str, float]:
    """Shares of a step, means over ranks: `compute`, `communicate` and `data`; call it on every rank.

    `data` is the loop's own time, measured in training. `compute` is measured here without any communication, and
    `communicate` is the rest of the step. So what a strategy hides behind computing counts as computing.
    """
    compute_s = _seconds_without_communication(run, watchdog)
    data = throughput.outside_share
    compute = min(compute_s / throughput.seconds_per_step, 1 - data)
    compute, data = run.group.sum(np.array([compute, data])) / run.group.size
    return {"compute": compute, "communicate": max(1 - compute - data, 0.0), "data": data}


def _seconds_without_communication(run: Run, watchdog: Watchdog) -> float:
    """Median seconds of a step on as many rows as one device gets, all ranks computing at the same time."""
    watchdog.compiling()
    learner = _build_single_process_learner(run)
    rows = max(run.global_batch // (run.group.size * run.learner.devices), 1)
    images, labels = run.dataset.train_images[:rows], run.dataset.train_labels[:rows]
    batch = Batch(images, labels, np.full(len(images), 1 / len(images), np.float32), 0.0)
    times = []
    for number in range(1 + run.runtime.profile):
        run.group.sum(np.zeros(1))  # all ranks start together, and slow each other down as in training
        began = time.perf_counter()
        learner.train_step(*batch)
        learner.weights()  # waits for the update; the loss alone would not
        times.append(time.perf_counter() - began)
        watchdog.progress(run.last_step, END, number)
    return float(np.median(times[1:]))  # the first step compiles


def _build_single_process_learner(run: Run) -> Learner:
    """A second learner, of the same network, weights and optimizer, with --strategy single.

    The run's own learner cannot be timed without its communication: strategies start it inside backward and update
    (hooks, compiled graphs, devices that a batch is split over), so there is no such step to call.
    """
    config = dataclasses.replace(
        run.config, strategy="single", api="auto", kvstore="device", op="average", compression="none"
    )
    runtime = dataclasses.replace(run.runtime, devices=0)
    return build_learner(config, run.learner.weights(), runtime, run.group)
