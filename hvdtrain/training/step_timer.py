"""Where the time of this rank's steps goes: computing, communicating, and waiting for rows."""

from __future__ import annotations

import time
from typing import NamedTuple

from hvdtrain.interfaces import Group
from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.system.phases import DATA, phases


class _Reading(NamedTuple):
    """What the clocks show at a moment."""

    now_s: float
    communicate_s: float | None
    data_s: float


class StepTimer:
    """Times the steps of this rank: what `phases` says belongs to a step, without evaluations, checkpoints and sums.

    group: tells how long this rank communicates.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rows = 0
        """Number of rows that this rank has trained on."""
        self._interval = NO_TIME
        """Since `take` was called last, up to the last moment that belonged to no step."""
        self._state: tuple[StepTime, _Reading | None] = NO_TIME, None
        """Of all steps up to that moment, and the beginning of the present steps: one value, so that a reader in
        another thread sees both."""

    def on_step_time(self, begins: bool) -> None:
        """Time of steps begins, or ends; see `Phases.start_run`."""
        total, began = self._state
        if begins:
            self._state = total, self._read()
            return
        times = self._since(began)
        self._interval = self._interval.plus(times)
        self._state = total.plus(times), None

    def take(self) -> StepTime:
        """What the steps took since this was called last; call it outside of steps."""
        interval, self._interval = self._interval, NO_TIME
        return interval

    @property
    def total(self) -> StepTime:
        """Of all steps of this run in this process; for any thread."""
        total, began = self._state
        return total.plus(self._since(began))

    def _read(self) -> _Reading:
        return _Reading(time.perf_counter(), self._group.communicate_s, phases.seconds(DATA))

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
