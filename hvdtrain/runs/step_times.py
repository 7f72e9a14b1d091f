"""Where the time of steps goes on each rank, and which ranks are slow: one rule for all that show or log it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DIGITS = 4
"""Significant digits of seconds in records."""
SLOW_SHARE, RECOVERED_SHARE, MIN_S = 0.5, 0.25, 0.1
"""A rank is slow if computing, or waiting for rows, takes it longer than the other ranks by this share of what they
compute, and by this time. One that was slow has recovered below the second share."""
WINDOW_S, PART_S = 5.0, 1.0
"""While a job trains, its ranks are compared over this time of steps, and over each part of it that is this long:
another program that starts may take a core for a moment."""
KINDS = ("compute", "data")
"""What can take a rank long: computing, and waiting for rows."""


class StepTime(NamedTuple):
    """Seconds of some steps of one rank; their sum is the time that the steps took."""

    compute_s: float = 0.0
    communicate_s: float | None = 0.0
    """See `Group.communicate_s`; where it cannot be told, it is None and part of `compute_s`."""
    data_s: float = 0.0
    """Waiting for rows."""

    @property
    def step_s(self) -> float:
        """The time that the steps took."""
        return self.compute_s + (self.communicate_s or 0.0) + self.data_s

    def plus(self, other: StepTime) -> StepTime:
        """Of the steps of both."""
        both = self.communicate_s, other.communicate_s
        communicate_s = None if both[0] is None or both[1] is None else both[0] + both[1]
        return StepTime(self.compute_s + other.compute_s, communicate_s, self.data_s + other.data_s)

    def as_columns(self, rank: int, size: int) -> np.ndarray:
        """(4, size), zero outside this rank's column: summed over ranks, it is what `StepTimes.from_columns` reads."""
        columns = np.zeros((len(self) + 1, size))
        columns[:, rank] = [self.compute_s, self.communicate_s or 0.0, self.data_s, self.communicate_s is None]
        return columns


class StepTimes(NamedTuple):
    """`StepTime` of the same steps on all ranks, each a list by rank."""

    compute_s: Sequence[float] = ()
    communicate_s: Sequence[float] | None = None
    data_s: Sequence[float] = ()

    @classmethod
    def from_columns(cls, columns: np.ndarray) -> StepTimes:
        """The times of all ranks, from the sum of their columns."""
        compute_s, communicate_s, data_s, unknown = columns.tolist()
        return cls(compute_s, None if any(unknown) else communicate_s, data_s)

    def by_rank(self) -> list[StepTime]:
        """The time of each rank."""
        communicate_s = [None] * len(self.compute_s) if self.communicate_s is None else self.communicate_s
        return list(map(StepTime, self.compute_s, communicate_s, self.data_s))

    def record(self) -> dict[str, list[float] | None]:
        """As a record of metrics has them."""
        columns = zip(self._fields, self, strict=True)
        return {name: None if times is None else [_rounded(value) for value in times] for name, times in columns}


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


class SlowRank(NamedTuple):
    """A rank that the other ranks wait for."""

    rank: int
    kind: str
    """One of KINDS."""
    factor: float
    """How many times as long as the others it takes, where computing takes them 1."""
    share: float
    """The time by which it takes longer, as a share of the time of the steps."""


def slow_ranks(times: Sequence[StepTime], share: float = SLOW_SHARE) -> list[SlowRank]:
    """The ranks that are slow in some steps, the slowest first; times: of each rank, of the same steps.

    In a step each rank waits for the slowest one, so only what a rank computes, and how long it waits for its rows, is
    its own. Empty for one rank, and where a rank cannot tell how long it communicates: computing then includes waiting.
    share: see SLOW_SHARE.
    """
    if len(times) < 2 or any(time.communicate_s is None for time in times):
        return []
    seconds = np.array([[time.compute_s for time in times], [time.data_s for time in times]])
    normal = _of_others(seconds)
    more, step_s = seconds - normal, max(time.step_s for time in times)
    slow = np.argwhere(more > np.maximum(share * normal[0], MIN_S))
    factors = 1 + more / np.maximum(normal[0], 1e-9)
    ranks = [
        SlowRank(int(rank), KINDS[kind], float(factors[kind, rank]), float(more[kind, rank] / step_s))
        for kind, rank in slow
    ]
    return sorted(ranks, key=lambda slow: -slow.factor)


def _of_others(seconds: np.ndarray) -> np.ndarray:
    """What the median rank took, seen by each rank: (kinds, ranks); of two ranks, the other one."""
    if seconds.shape[1] == 2:
        return seconds[:, ::-1]
    return np.broadcast_to(np.median(seconds, axis=1, keepdims=True), seconds.shape)


class SlowRanks:
    """Which ranks of a job that trains are slow, by what they did in the last WINDOW_S of steps."""

    def __init__(self) -> None:
        self.slow: list[SlowRank] = []
        """The ranks that are slow now."""
        self._parts: deque[list[StepTime]] = deque()

    def add(self, times: Sequence[StepTime]) -> None:
        """Further steps, of all ranks; another number of ranks begins anew."""
        if self._parts and len(self._parts[-1]) != len(times):
            self.__init__()  # type: ignore[misc]
        if self._parts and _length_s(self._parts[-1]) < PART_S:
            times = [before.plus(time) for before, time in zip(self._parts.pop(), times, strict=True)]
        self._parts.append(list(times))
        while len(self._parts) > 1 and sum(map(_length_s, self._parts)) - _length_s(self._parts[0]) >= WINDOW_S:
            self._parts.popleft()
        if sum(map(_length_s, self._parts)) >= WINDOW_S and _length_s(self._parts[-1]) >= PART_S:
            self._compare()

    def _compare(self) -> None:
        before = {(slow.rank, slow.kind) for slow in self.slow}
        lately = [functools.reduce(StepTime.plus, times) for times in zip(*self._parts, strict=True)]
        always = set.intersection(
            *({(slow.rank, slow.kind) for slow in slow_ranks(part, RECOVERED_SHARE)} for part in self._parts)
        )
        now = {(slow.rank, slow.kind) for slow in slow_ranks(lately)} & always
        self.slow = [slow for slow in slow_ranks(lately, RECOVERED_SHARE) if (slow.rank, slow.kind) in now | before]


def _length_s(times: Sequence[StepTime]) -> float:
    return max(time.step_s for time in times)
