"""How fast training is, and the share of its time that the loop itself takes."""

from __future__ import annotations

import time

import numpy as np


class Throughput:
    """Images per second of each logging interval, and the share of time outside the framework's steps.

    outside: measures the loop's own work; enter it around whatever the framework does not do.
    """

    def __init__(self, global_batch: int) -> None:
        self._batch = global_batch
        self.outside = Stopwatch()
        self._rates: list[float] = []
        self._seconds = self._outside_s = 0.0

    def start(self, step: int) -> None:
        """Begin an interval at this step; time before it, of evaluation and checkpoints, does not count."""
        self._step, self._began, self.outside.seconds = step, time.perf_counter(), 0.0

    def interval(self, step: int) -> dict[str, float]:
        """End the interval at this step and begin the next: `images_per_s`, and `outside_s` in seconds.

        Empty if the interval has no step.
        """
        seconds, steps = time.perf_counter() - self._began, step - self._step
        if steps == 0:
            return {}
        outside_s = self.outside.seconds
        self._rates.append(steps * self._batch / seconds)
        self._seconds, self._outside_s = self._seconds + seconds, self._outside_s + outside_s
        self.start(step)
        return {"images_per_s": self._rates[-1], "outside_s": outside_s}

    @property
    def median(self) -> float:
        """Images per second of the median interval, without the first one, which warms up, if there are others."""
        return float(np.median(self._rates[1:] or self._rates or [0.0]))

    @property
    def seconds_per_step(self) -> float:
        """Seconds of a step at the `median` rate, 0 before the first interval."""
        return self._batch / self.median if self.median else 0.0

    @property
    def outside_share(self) -> float:
        """Time in the loop, between the framework's steps, as a share of all training time."""
        return self._outside_s / self._seconds if self._seconds else 0.0


class Stopwatch:
    """Seconds spent inside its `with` blocks."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began
