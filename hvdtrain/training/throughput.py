"""How fast training is, and how much of its time the loop itself takes."""

from __future__ import annotations

import time

import numpy as np


class Speed:
    """Images a second between looks, and the share of time that the loop itself takes."""

    def __init__(self, global_batch: int) -> None:
        self._batch = global_batch
        self.outside = Stopwatch()
        self._rates: list[float] = []
        self._outside = self.seconds = 0.0

    def start(self, step: int) -> None:
        """Begin an interval; evaluation and checkpoints before it do not count."""
        self._step, self._began, self.outside.seconds = step, time.perf_counter(), 0.0

    def at(self, step: int) -> dict[str, float]:
        """Close the interval at this step and begin the next; empty where no step was made."""
        seconds, steps = time.perf_counter() - self._began, step - self._step
        if steps == 0:
            return {}
        outside = self.outside.seconds
        self._rates.append(steps * self._batch / seconds)
        self.seconds, self._outside = self.seconds + seconds, self._outside + outside
        self.start(step)
        return {"images_per_s": self._rates[-1], "outside_s": outside}

    @property
    def median(self) -> float:
        """Images a second, the median interval; the first one, which warms up, counts only where it is alone."""
        return float(np.median(self._rates[1:] or self._rates or [0.0]))

    @property
    def seconds_a_step(self) -> float:
        """Seconds of a step, by `median`."""
        return self._batch / self.median if self.median else 0.0

    @property
    def outside_share(self) -> float:
        """Time in the loop, between the framework's steps, as a part of all training time."""
        return self._outside / self.seconds if self.seconds else 0.0


class Stopwatch:
    """Seconds spent inside its `with` blocks."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began
