"""Where the time of a training step goes (`--profile`): computing, communicating, the update, and the loop."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from typing import NamedTuple, Protocol, SupportsFloat, runtime_checkable

import numpy as np

from hvdtrain.frameworks.registry import build_without_communication
from hvdtrain.interfaces import Batch, Learner
from hvdtrain.training.compilation import compile_step
from hvdtrain.training.run import Run
from hvdtrain.training.throughput import Throughput
from hvdtrain.training.watchdog import END, Watchdog


@runtime_checkable
class GradientLearner(Protocol):
    """A learner whose forward and backward pass can run without an update, so that each can be timed."""

    def compute_gradients(self, batch: Batch) -> SupportsFloat:
        """Forward and backward of `train_step`; complete when `weights` returns, which does not change."""
        ...


class StepTimes(NamedTuple):
    """Seconds of a step without communication."""

    step_s: float
    """Forward, backward and update."""
    update_s: float | None
    """The update alone; None where it cannot be told from the rest."""


def step_shares(run: Run, throughput: Throughput, watchdog: Watchdog) -> dict[str, float | None]:
    """Shares of a step, means over ranks: `compute`, `communicate`, `update` and `data`; call it on every rank.

    `data` is the loop's own time, measured in training. `compute`, forward and backward, and `update` are measured
    here without any communication, and `communicate` is the rest of the step. So what a strategy hides behind
    computing counts as computing. One process on one device does not communicate, so all that is not `data` is
    `compute` and `update`. `update` is None in a framework's own loop , where it counts as `compute`.
    """
    data = throughput.outside_share
    times = _time_without_communication(run, watchdog)
    alone = run.group.size * run.learner.devices == 1
    computing = 1 - data if alone else min(times.step_s / throughput.seconds_per_step, 1 - data)
    update = computing * min((times.update_s or 0.0) / max(times.step_s, 1e-9), 1.0)
    computing, update, data = run.group.sum(np.array([computing, update, data])) / run.group.size
    return {
        "compute": computing - update,
        "communicate": 0.0 if alone else max(1 - computing - data, 0.0),
        "update": None if times.update_s is None else update,
        "data": data,
    }


def _time_without_communication(run: Run, watchdog: Watchdog) -> StepTimes:
    """Median seconds of steps on as many rows as one device gets, all ranks computing at the same time.

    The update is the median difference of a step and the forward and backward pass that follows it: in some frameworks
    it cannot be called by itself.
    """
    watchdog.compiling()
    learner = build_without_communication(run.config, run.target, run.learner.weights(), run.runtime, run.group)
    rows = max(run.global_batch // (run.group.size * run.learner.devices), 1)
    compile_step(run.config, learner, run.dataset.train, rows)
    taken = np.arange(min(rows, run.samples))
    batch = Batch(run.dataset.train[taken], np.full(len(taken), 1 / len(taken), np.float32), 0.0, 0, taken)
    steps = 1 + run.runtime.profile  # the first compiles
    clock = _Clock(run, learner, watchdog)
    if type(learner).fit is not Learner.fit:
        learner.fit(itertools.repeat(batch, steps), steps, lambda _: clock.end("step", "nothing"))
        return StepTimes(clock.seconds("step"), None)
    for step in range(steps):
        learner.train_step(batch)
        clock.end("step", "nothing")
        if isinstance(learner, GradientLearner):
            if step == 0:
                watchdog.compiling()
            learner.compute_gradients(batch)
            clock.end("gradients")
    if not isinstance(learner, GradientLearner):
        return StepTimes(clock.seconds("step"), None)
    return StepTimes(clock.seconds("step"), clock.seconds("step", less="gradients"))


class _Clock:
    """Times operations that all ranks begin together, so that they slow each other down as in training."""

    def __init__(self, run: Run, learner: Learner, watchdog: Watchdog) -> None:
        self._run, self._learner, self._watchdog = run, learner, watchdog
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self._number = itertools.count()
        self._began = time.perf_counter()

    def end(self, *kinds: str) -> None:
        """The operation of the first kind ends; of those after it, which take no time, only the clock's own."""
        for kind in kinds:
            self._learner.weights()  # waits for the update; the loss alone would not
            self._times[kind].append(time.perf_counter() - self._began)
            self._watchdog.progress(self._run.last_step, END, next(self._number))
            self._run.group.sum(np.zeros(1))
            self._began = time.perf_counter()

    def seconds(self, kind: str, less: str = "nothing") -> float:
        """Median seconds of an operation less another one, at least 0; without the first, which compile."""
        return max(float(np.median(np.subtract(self._times[kind], self._times[less])[1:])), 0.0)
