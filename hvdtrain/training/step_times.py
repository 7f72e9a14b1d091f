"""Where the time of this rank's steps goes: computing, communicating, and waiting for rows."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from hvdtrain.interfaces import Group
from hvdtrain.system.stopwatch import Stopwatch

DIGITS = 4
"""Significant digits of seconds in records."""


class IntervalTimes(NamedTuple):
    """Seconds of some steps of one rank; their sum is the time that the steps took."""

    compute_s: float
    communicate_s: float | None
    """See `Group.communicate_s`; where it cannot be told, it is part of `compute_s`."""
    data_s: float
    """Waiting for rows."""

    @property
    def step_s(self) -> float:
        """The time that the steps took."""
        return self.compute_s + (self.communicate_s or 0.0) + self.data_s


NO_TIME = IntervalTimes(0.0, 0.0, 0.0)


class RankTimes(NamedTuple):
    """`IntervalTimes` of the same steps on all ranks, each a list by rank."""

    compute_s: list[float]
    communicate_s: list[float] | None
    data_s: list[float]

    def record(self) -> dict[str, list[float] | None]:
        """As a record of metrics has them."""
        by_name = zip(self._fields, self, strict=True)
        return {name: None if one is None else [_rounded(value) for value in one] for name, one in by_name}


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


class _Reading(NamedTuple):
    """What the clocks show at a moment."""

    now_s: float
    communicate_s: float | None
    data_s: float


class StepTimer:
    """Times intervals of steps, without evaluations, checkpoints and what else is between them.

    group: tells how long this rank communicates. waiting: measures how long it waits for rows.
    """

    def __init__(self, group: Group, waiting: Stopwatch) -> None:
        self._group, self._waiting = group, waiting
        self.rows = 0
        """Number of rows that this rank has trained on."""
        self._paused = NO_TIME
        """Of the present interval, up to its last pause."""
        self._state: tuple[IntervalTimes, _Reading | None] = NO_TIME, None
        """Of complete intervals, and the beginning of the present one: one value, so that a reader sees both."""

    def start(self) -> None:
        """Begin an interval, or go on after a pause; nothing if one has begun."""
        total, began = self._state
        self._state = total, began or self._read()

    def pause(self) -> None:
        """Leave out what follows, until `start` is called. Call it when the steps so far are computed."""
        total, began = self._state
        interval = self._since(began)
        self._paused = _sum(self._paused, interval)
        self._state = _sum(total, interval), None

    def stop(self) -> IntervalTimes:
        """End the interval; returns what it took. Call it when this rank has nothing more to compute for its steps."""
        self.pause()
        interval, self._paused = self._paused, NO_TIME
        return interval

    @property
    def total(self) -> IntervalTimes:
        """Of all steps in this process, with the present interval; for any thread."""
        total, began = self._state
        return _sum(total, self._since(began))

    def _read(self) -> _Reading:
        return _Reading(time.perf_counter(), self._group.communicate_s, self._waiting.seconds)

    def _since(self, began: _Reading | None) -> IntervalTimes:
        if began is None:
            return NO_TIME
        now = self._read()
        seconds, data_s = now.now_s - began.now_s, now.data_s - began.data_s
        if now.communicate_s is None or began.communicate_s is None:
            return IntervalTimes(max(seconds - data_s, 0.0), None, data_s)
        # Horovod's figure can shrink a little where other tensors follow those of the last step.
        communicate_s = min(max(now.communicate_s - began.communicate_s, 0.0), seconds - data_s)
        return IntervalTimes(max(seconds - communicate_s - data_s, 0.0), communicate_s, data_s)


def _sum(one: IntervalTimes, other: IntervalTimes) -> IntervalTimes:
    both = one.communicate_s, other.communicate_s
    communicate_s = None if both[0] is None or both[1] is None else both[0] + both[1]
    return IntervalTimes(one.compute_s + other.compute_s, communicate_s, one.data_s + other.data_s)


def as_columns(times: IntervalTimes, rank: int, size: int) -> np.ndarray:
    """What `RankTimes` is made of when it is summed over ranks: (4, size), zero but in this rank's column."""
    columns = np.zeros((len(times) + 1, size))
    columns[:, rank] = [times.compute_s, times.communicate_s or 0.0, times.data_s, times.communicate_s is None]
    return columns


def from_columns(columns: np.ndarray) -> RankTimes:
    """The times of all ranks, from the sum of their columns."""
    compute_s, communicate_s, data_s, unknown = columns.tolist()
    return RankTimes(compute_s, None if any(unknown) else communicate_s, data_s)
