"""How fast training is, and the share of its time that the loop itself takes."""

from __future__ import annotations

import time

import numpy as np

from hvdtrain.interfaces import Position
from hvdtrain.system.phases import DATA, LOGGING, LOOP, phases
from hvdtrain.training.observer import Observer


class Throughput(Observer):
    """Images per second of each logging interval, and the share of time outside the framework's steps.

    Images are rows of the data: those that pad a batch do not count. Neither does time of evaluations and checkpoints.
    """

    def __init__(self) -> None:
        self._waited_s = self._epoch_s = self._epoch_waited_s = 0.0
        self._rates: list[float] = []
        self._step_s: list[float] = []
        self._seconds = self._outside_s = 0.0

    def epoch_started(self, at: Position) -> None:
        """An interval begins here, in an epoch."""
        self._at, self._began = at, time.perf_counter()
        self._outside_before, self._waited_before = phases.seconds(LOOP, DATA, LOGGING), phases.seconds(DATA)

    saved = epoch_started

    def interval(self, at: Position) -> dict[str, float]:
        """End the interval here, in the same epoch, and begin the next: `images_per_s`, and in seconds `outside_s`
        and `data_wait_s`. Empty if the interval has no step.
        """
        seconds, steps = time.perf_counter() - self._began, at.step - self._at.step
        if steps == 0:
            return {}
        outside_s = phases.seconds(LOOP, DATA, LOGGING) - self._outside_before
        waited_s = phases.seconds(DATA) - self._waited_before
        self._rates.append((at.rows_in_epoch - self._at.rows_in_epoch) / seconds)
        self._step_s.append(seconds / steps)
        self._seconds, self._outside_s = self._seconds + seconds, self._outside_s + outside_s
        self._waited_s += waited_s
        self._epoch_s, self._epoch_waited_s = self._epoch_s + seconds, self._epoch_waited_s + waited_s
        self.epoch_started(at)
        return {"images_per_s": self._rates[-1], "outside_s": outside_s, "data_wait_s": waited_s}

    def take_wait_share(self) -> float:
        """Time in which steps waited for data, as a share of the training time since this was called last."""
        share = self._epoch_waited_s / self._epoch_s if self._epoch_s else 0.0
        self._epoch_s = self._epoch_waited_s = 0.0
        return share

    @property
    def wait_share(self) -> float:
        """Time in which steps waited for data, as a share of all training time."""
        return self._waited_s / self._seconds if self._seconds else 0.0

    @property
    def images_per_s(self) -> float:
        """Of the median interval, without the first one, which warms up, if there are others; 0 before the first."""
        return _median(self._rates)

    @property
    def seconds_per_step(self) -> float:
        """Of the median interval, as `images_per_s`."""
        return _median(self._step_s)

    @property
    def outside_share(self) -> float:
        """Time in the loop, between the framework's steps, as a share of all training time."""
        return self._outside_s / self._seconds if self._seconds else 0.0


def _median(values: list[float]) -> float:
    return float(np.median(values[1:] or values or [0.0]))
