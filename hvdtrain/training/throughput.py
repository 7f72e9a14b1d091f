"""How fast training is, and the share of its time that the loop itself takes."""

from __future__ import annotations

import time

import numpy as np

from hvdtrain.interfaces import Position
from hvdtrain.system.stopwatch import Stopwatch


class Throughput:
    """Images per second of each logging interval, and the share of time outside the framework's steps.

    Images are rows of the data: those that pad a batch do not count.
    outside: measures the loop's own work; enter it around whatever the framework does not do. waiting: measures, within
    outside, the time in which a step waits for its rows.
    """

    def __init__(self) -> None:
        self.outside, self.waiting = Stopwatch(), Stopwatch()
        self._before = 0.0, 0.0
        """What the two had measured when the interval began."""
        self._waited_s = self._epoch_s = self._epoch_waited_s = 0.0
        self._rates: list[float] = []
        self._step_s: list[float] = []
        self._seconds = self._outside_s = 0.0

    def start(self, at: Position) -> None:
        """Begin an interval here, in an epoch; time before it, of evaluation and checkpoints, does not count."""
        self._at, self._began = at, time.perf_counter()
        self._before = self.outside.seconds, self.waiting.seconds

    def interval(self, at: Position) -> dict[str, float]:
        """End the interval here, in the same epoch, and begin the next: `images_per_s`, and in seconds `outside_s`
        and `data_wait_s`. Empty if the interval has no step.
        """
        seconds, steps = time.perf_counter() - self._began, at.step - self._at.step
        if steps == 0:
            return {}
        outside_s, waited_s = self.outside.seconds - self._before[0], self.waiting.seconds - self._before[1]
        self._rates.append((at.rows_in_epoch - self._at.rows_in_epoch) / seconds)
        self._step_s.append(seconds / steps)
        self._seconds, self._outside_s = self._seconds + seconds, self._outside_s + outside_s
        self._waited_s += waited_s
        self._epoch_s, self._epoch_waited_s = self._epoch_s + seconds, self._epoch_waited_s + waited_s
        self.start(at)
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
