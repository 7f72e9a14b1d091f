"""The time of steps on each rank, and the one rule by which a rank is slow: for logs, `watch`, web page and report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DIGITS = 4
"""Significant digits of seconds in records."""
WINDOW_S = 5.0
"""Over how long ranks are compared: another program that starts may take a core for some seconds."""
SLOW_SHARE, MIN_SHARE = 0.6, 0.3
"""A rank is slow if its steps take longer than the median rank's by the first share of what that rank computes over the
window, and by the second share in each part of the window. Below the second share it has recovered.

In a simulation of two ranks with jitter, 0.25 named a healthy rank in 112 of 4,000 windows, 0.5 in 3, 0.6 in none."""
MIN_MORE_S = 0.1
"""Shorter differences do not count: chance decides them, or they cost the others next to nothing."""


class StepSeconds(NamedTuple):
    """Seconds that steps took a rank: those of a logging interval, of a window, or of all steps so far."""

    compute: float
    """Computing; with communication where that is not known."""
    communicate: float | None
    """Transfer, and waiting for other ranks, see `Group.communicate_s`; None where it cannot be told."""
    data: float
    """Waiting for rows."""

    @property
    def total(self) -> float:
        return self.compute + (self.communicate or 0.0) + self.data

    @property
    def local(self) -> float:
        """What the rank took for its own rows: other ranks wait for the one with the most."""
        return self.compute + self.data

    def plus(self, other: StepSeconds) -> StepSeconds:
        known = self.communicate is not None and other.communicate is not None
        communicate = (self.communicate or 0.0) + (other.communicate or 0.0)
        compute, data = self.compute + other.compute, self.data + other.data
        return StepSeconds(compute, communicate, data) if known else StepSeconds(compute + communicate, None, data)

    def minus(self, other: StepSeconds) -> StepSeconds:
        """The time of these steps without the first ones of them; no part is below 0."""
        known = self.communicate is not None and other.communicate is not None
        communicate = max((self.communicate or 0.0) - (other.communicate or 0.0), 0.0)
        compute = max(self.compute - other.compute, 0.0)
        return StepSeconds(compute, communicate if known else None, max(self.data - other.data, 0.0))

    @property
    def shares(self) -> StepSeconds | None:
        """Each part as a share of the time; None if no time has passed."""
        return self.of(1.0) if self.total else None

    def of(self, seconds: float) -> StepSeconds:
        total = self.total / seconds
        communicate = None if self.communicate is None else self.communicate / total
        return StepSeconds(self.compute / total, communicate, self.data / total)


NO_TIME = StepSeconds(0.0, 0.0, 0.0)


def to_record(times: Sequence[StepSeconds | None]) -> dict[str, list[float | None] | None]:
    """The times of ranks, by rank, as a record of metrics has them; communication is None unless all ranks know it.

    times: None for a rank that is not there, as one that was lost.
    """
    known = all(time.communicate is not None for time in times if time)
    return {
        "compute_s": [time and _rounded(time.compute) for time in times],
        "communicate_s": [time and _rounded(time.communicate or 0.0) for time in times] if known else None,
        "data_s": [time and _rounded(time.data) for time in times],
    }


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


class SlowRank(NamedTuple):
    """A rank that the others wait for in each step."""

    rank: int
    part: str
    """What takes it so long: `compute` or `data`."""
    ratio: float
    """1, and how much longer than the median rank it takes, by what that rank computes."""
    more_s: float
    """How much longer than the median rank it takes, in the window."""

    @property
    def remark(self) -> str:
        is_data = self.part == "data"
        return "waits for data, and the others for it" if is_data else "slow: the others wait for it"


PARTS = ("compute", "data")


NOBODY: frozenset[tuple[int, str]] = frozenset()


def slow_ranks(
    window: Sequence[Sequence[StepSeconds]], was_slow: frozenset[tuple[int, str]] = NOBODY, work: Sequence[float] = ()
) -> list[SlowRank]:
    """The ranks that are slow in a window, the slowest last.

    In a step each rank waits for the slowest one, so only what a rank computes, and how long it waits for its rows,
    tells ranks apart. Where a strategy cannot tell how long a rank communicates, computing contains that wait, and no
    rank is called slow.
    window: the times of all ranks, by rank, in each of its parts. was_slow: ranks that were slow before, each with its
    `SlowRank.part`; they stay slow until they have recovered. work: how much each rank computes, in any unit, as with
    --shards ranks may have more shards than others; empty if they have equal work. A rank that takes long because it
    has more of it is not slow, and nobody waits for a slow one that has less of it.
    """
    times = [time for part in window for time in part]
    if not window or len(window[0]) < 2 or any(time.communicate is None for time in times):
        return []
    seconds = np.array([[[time.compute for time in part], [time.data for time in part]] for part in window])
    more_s, normal_s, slow, stays = _compared(seconds)
    if len(work) == seconds.shape[2] and min(work) > 0:
        also_slow, also_stays = slow, stays
        more_s, normal_s, slow, stays = _compared(seconds * (np.mean(work) / np.array(work)))
        slow, stays = slow & also_slow, stays & also_stays
    ratios = 1 + more_s / np.maximum(normal_s, 1e-9)
    ranks = [
        SlowRank(rank, part, float(ratios[number, rank]), float(more_s[number, rank]))
        for number, part in enumerate(PARTS)
        for rank in range(seconds.shape[2])
        if slow[number, rank] or ((rank, part) in was_slow and stays[number, rank])
    ]
    return sorted(ranks, key=lambda rank: rank.more_s)


def _compared(seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """By part and rank, (2, ranks): seconds above the median rank; of that, what it computes, (1, ranks); whether a
    rank is slow, and whether one that was is so still. seconds: (parts of the window, 2, ranks).
    """
    normal = _of_others(seconds)
    more, computing = seconds - normal, normal[:, :1]
    always = (more > MIN_SHARE * computing).all(0)
    more_s, normal_s = more.sum(0), computing.sum(0)
    slow = always & (more_s > SLOW_SHARE * normal_s) & (more_s > MIN_MORE_S)
    return more_s, normal_s, slow, more_s >= MIN_SHARE * normal_s


def _of_others(seconds: np.ndarray) -> np.ndarray:
    """What the median rank took, seen by each rank: (parts of the window, 2, ranks); of two ranks, the other one."""
    if seconds.shape[2] == 2:
        return seconds[:, :, ::-1]
    return np.broadcast_to(np.median(seconds, axis=2, keepdims=True), seconds.shape)
