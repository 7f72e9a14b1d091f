"""Losses of the steps between two logging steps: joined over all ranks, and watched for spikes.

The watchdog refers to this file by name: here a rank waits for its framework to finish the steps whose losses it reads.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from hvdtrain.interfaces import Group
from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.training.reduction import sum_arrays
from hvdtrain.training.step_times import as_columns, from_columns

SPIKE_FACTOR, SPIKE_NATS = 3.0, 0.5
"""A loss is a spike if it exceeds this multiple of the recent median, and the median by this much."""
SPIKE_HISTORY, SPIKE_LEAST = 20, 5
"""Number of recent intervals that the median is taken over, and how many it needs at least."""


class RankStep(NamedTuple):
    """A step on one rank."""

    rank: int
    step: int


class Interval(NamedTuple):
    """What all ranks computed since the last logging step."""

    loss: float
    """Mean loss over the interval's rows, without those of losses that were not finite; NaN if none was finite."""
    not_finite: RankStep | None = None
    """The first step whose loss was not finite, and the rank on which that happened."""
    stopping_rank: int | None = None
    """First rank that was asked to stop."""
    checkpoint_due: bool = False
    """Whether rank 0 finds it time for a checkpoint."""
    times: Sequence[StepTime] = ()
    """How long the interval's steps took each rank."""


def _one_by_one(losses: list[Any]) -> list[float]:
    return [float(loss) for loss in losses]


class LossMeter:
    """Collects the lazy losses of an interval, and joins them over the group in a single allreduce.

    Losses are read only when they are joined, so no step waits for the one before it.
    """

    def __init__(self, group: Group, read: Callable[[list[Any]], list[float]] = _one_by_one) -> None:
        """read: the values of losses."""
        self._group, self._read_losses = group, read
        self._pending: list[tuple[int, SupportsFloat]] = []

    def add(self, step: int, loss: SupportsFloat) -> None:
        """Add this rank's loss of a step, weighted so that the mean over ranks is that of the global batch."""
        self._pending.append((step, loss))

    def join(self, stop_requested: bool = False, checkpoint_due: bool = False, time: StepTime = NO_TIME) -> Interval:
        """The interval over all ranks; call it on every rank at the same step.

        stop_requested: whether this rank was asked to stop. checkpoint_due: rank 0's decides. time: how long the
        steps took this rank, without this sum, in which it may wait for other ranks.
        """
        rank, size = self._group.rank, self._group.size
        total, finite, first_bad_step = self._read()
        totals = np.array([total, finite, checkpoint_due and rank == 0])
        bad, bad_step, stop = np.zeros(size), np.zeros(size), np.zeros(size)
        if first_bad_step is not None:
            bad[rank], bad_step[rank] = 1, first_bad_step
        stop[rank] = stop_requested
        columns = as_columns(time, rank, size)
        totals, bad, bad_step, stop, columns = sum_arrays(self._group, totals, bad, bad_step, stop, columns)
        loss = float(totals[0] / totals[1]) if totals[1] else math.nan
        return Interval(loss, _earliest(bad, bad_step), _first(stop), bool(totals[2]), from_columns(columns))

    def _read(self) -> tuple[float, int, int | None]:
        """Sum and number of the finite losses, and the first step whose loss was not finite."""
        total, finite, first_bad_step = 0.0, 0, None
        steps, losses = [step for step, _ in self._pending], [loss for _, loss in self._pending]
        for step, value in zip(steps, self._read_losses(losses), strict=True):
            if math.isfinite(value):
                total += value
                finite += 1
            elif first_bad_step is None:
                first_bad_step = step
        self._pending.clear()
        return total, finite, first_bad_step


def _earliest(bad: np.ndarray, bad_step: np.ndarray) -> RankStep | None:
    """The rank with the first bad step; both arrays are by rank."""
    if not bad.any():
        return None
    rank = int(np.argmin(np.where(bad > 0, bad_step, np.inf)))
    return RankStep(rank, int(bad_step[rank]))


def _first(flags: np.ndarray) -> int | None:
    return int(np.argmax(flags)) if flags.any() else None


class SpikeDetector:
    """Remembers the losses of recent intervals, and recognizes one that is far above them."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SPIKE_HISTORY)

    def exceeded_median(self, loss: float) -> float | None:
        """The median of the recent intervals if `loss` (nats) is a spike above it, else None."""
        median = statistics.median(self._recent) if len(self._recent) >= SPIKE_LEAST else math.inf
        if math.isfinite(loss):
            self._recent.append(loss)
        return median if loss > max(SPIKE_FACTOR * median, median + SPIKE_NATS) else None
