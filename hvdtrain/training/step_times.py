"""Where the time of this rank's steps goes: computing, communicating, and waiting for rows."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from hvdtrain.interfaces import Group
from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.system.stopwatch import Stopwatch


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
        self._state: tuple[StepTime, _Reading | None] = NO_TIME, None
        """Of complete intervals, and the beginning of the present one: one value, so that a reader sees both."""

    def start(self) -> None:
        """Begin an interval, or go on after a pause; nothing if one has begun."""
        total, began = self._state
        self._state = total, began or self._read()

    def pause(self) -> None:
        """Leave out what follows, until `start` is called. Call it when the steps so far are computed."""
        total, began = self._state
        interval = self._since(began)
        self._paused = self._paused.plus(interval)
        self._state = total.plus(interval), None

    def stop(self) -> StepTime:
        """End the interval; returns what it took. Call it when this rank has nothing more to compute for its steps."""
        self.pause()
        interval, self._paused = self._paused, NO_TIME
        return interval

    @property
    def total(self) -> StepTime:
        """Of all steps in this process, with the present interval; for any thread."""
        total, began = self._state
        return total.plus(self._since(began))

    def _read(self) -> _Reading:
        return _Reading(time.perf_counter(), self._group.communicate_s, self._waiting.seconds)

    def _since(self, began: _Reading | None) -> StepTime:
        if began is None:
            return NO_TIME
        now = self._read()
        seconds, data_s = now.now_s - began.now_s, now.data_s - began.data_s
        if now.communicate_s is None or began.communicate_s is None:
            return StepTime(max(seconds - data_s, 0.0), None, data_s)
        # Horovod's figure can shrink a little where other tensors follow those of the last step.
        communicate_s = min(max(now.communicate_s - began.communicate_s, 0.0), seconds - data_s)
        return StepTime(max(seconds - communicate_s - data_s, 0.0), communicate_s, data_s)


def as_columns(time: StepTime, rank: int, size: int) -> np.ndarray:
    """This rank's part of a sum over ranks that gives the times of all: (4, size), zero but in this rank's column."""
    columns = np.zeros((len(time) + 1, size))
    columns[:, rank] = [time.compute, time.communicate or 0.0, time.data, time.communicate is None]
    return columns


def from_columns(columns: np.ndarray) -> list[StepTime]:
    """The times of all ranks, by rank, from the sum of their columns: no rank knows its communication unless all do."""
    by_rank, known = columns[:3].T.tolist(), not columns[3].any()
    return [StepTime(compute, communicate if known else None, data) for compute, communicate, data in by_rank]
