"""Who computes how many shards (`--balance`), by the time that a shard took each rank.

Which rank computes a shard has no influence on the bits. In a step all wait for the rank that takes longest for its
shards, so a rank that takes twice as long for each should have half as many. All ranks know the times of all from the
logging steps, and so each decides by itself, and they decide the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvdtrain.datasets.sharding import Assignment
from hvdtrain.runs.step_times import NO_TIME, StepSeconds

PART_S = 1.0
"""The time of shards is measured over parts of so many seconds: within less, chance decides."""
LENGTHS = (5, 10, 20, 40, 80)
"""Numbers of the newest parts over which ranks are compared: the longer, the smaller the differences that are seen."""
MIN_GAIN = 0.1
"""Shards move if the slowest rank then takes less for its shards by this share or more, ..."""
NOISES = 4.0
"""... and by more than this multiple of what chance makes of it: in simulations (`tests/unit/training/test_balance.py`)
ranks whose parts vary by up to 30 % keep their shards."""


class Move(NamedTuple):
    """A shard, and the ranks that computed it and will compute it, by position."""

    shard: int
    giver: int
    receiver: int


class Rebalancing(NamedTuple):
    """Another assignment, what is different in it, and the times that led to it."""

    assignment: Assignment
    moves: list[Move]
    shard_s: list[float]
    """What a shard takes each rank."""
    before_s: float
    after_s: float
    """What a step's shards take the slowest rank: measured, and to be expected."""


def balanced(counts: Sequence[int], shard_s: Sequence[float]) -> list[int]:
    """The numbers of shards by which the slowest rank takes least for its own; each rank keeps at least one.

    counts: the present numbers, by rank. shard_s: what a shard takes each rank. As few shards move as possible.

    While moving one from the slowest rank to the one that then takes least helps, it is moved. Afterwards every rank
    would take as long as the slowest with one more, and one of them has one more wherever the slowest has fewer.
    """
    numbers, seconds = np.array(counts), np.asarray(shard_s)
    while True:
        slowest, receiver = int(np.argmax(numbers * seconds)), int(np.argmin((numbers + 1) * seconds))
        is_better = (numbers[receiver] + 1) * seconds[receiver] < numbers[slowest] * seconds[slowest]
        if numbers[slowest] <= 1 or not is_better:
            return [int(number) for number in numbers]
        numbers[slowest] -= 1
        numbers[receiver] += 1


def moves_to(assignment: Assignment, counts: Sequence[int]) -> list[Move]:
    """The shards that move so that each rank has so many: the last ones of those that give."""
    pairs = list(zip(assignment.by_rank, counts, strict=True))
    given = [(shard, giver) for giver, (shards, count) in enumerate(pairs) for shard in shards[count:]]
    places = [rank for rank, (shards, count) in enumerate(pairs) for _ in range(count - len(shards))]
    return [Move(shard, giver, receiver) for (shard, giver), receiver in zip(given, places, strict=True)]


def moved(assignment: Assignment, moves: Sequence[Move]) -> Assignment:
    """The assignment after these moves."""
    by_rank = [set(shards) for shards in assignment.by_rank]
    for shard, giver, receiver in moves:
        by_rank[giver].remove(shard)
        by_rank[receiver].add(shard)
    return Assignment(tuple(tuple(sorted(shards)) for shards in by_rank))


class Balancer:
    """Decides when shards move, from the times of the logging steps since they moved last.

    A rank that gives what it has just got, or gets what it has just given, is watched twice as long before the next
    change: where its speed depends on what it computes, shards would move for ever.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._lengths: tuple[int, ...] = LENGTHS
        self._last_change = np.zeros(len(assignment.by_rank), int)
        """By rank, how many shards it got at the last change."""
        self._begin(assignment)

    def _begin(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self._steps, self._part = 0, [NO_TIME] * len(assignment.by_rank)
        self._parts: deque[np.ndarray] = deque(maxlen=LENGTHS[-1])
        """What a shard took each rank in each part."""
        self._is_warm = False

    def add(self, steps: int, times: Sequence[StepSeconds]) -> Rebalancing | None:
        """Add what so many steps took each rank; the change that is to be made before the next step, if there is one.

        The first steps with an assignment are left out: frameworks compile graphs for other numbers of shards, and
        reading ahead begins again.
        """
        if any(time.communicate is None for time in times):  # computing then contains waiting for the slowest rank
            return None
        if not self._is_warm:
            self._is_warm = True
            return None
        self._steps += steps
        self._part = [time.plus(other) for time, other in zip(self._part, times, strict=True)]
        if max(time.total for time in self._part) < PART_S:
            return None
        counts = np.array(self.assignment.counts)
        self._parts.append(np.array([time.local for time in self._part]) / (self._steps * counts))
        self._steps, self._part = 0, [NO_TIME] * len(times)
        windows = (list(self._parts)[-length:] for length in self._lengths if length <= len(self._parts))
        change = next(filter(None, (better(self.assignment, window) for window in windows)), None)
        if change:
            self._change_to(change.assignment)
        return change

    def _change_to(self, assignment: Assignment) -> None:
        change = np.array(assignment.counts) - self.assignment.counts
        is_reversed = bool((change * self._last_change < 0).any())
        self._lengths = (self._lengths[1:] or self._lengths) if is_reversed else LENGTHS
        self._last_change = change
        self._begin(assignment)


def better(assignment: Assignment, window: Sequence[np.ndarray]) -> Rebalancing | None:
    """A change of the assignment that makes steps shorter, beyond chance. window: see `Balancer`."""
    rows, before = np.array(window), np.array(assignment.counts)
    shard_s = np.median(rows, axis=0)
    after = np.array(balanced(before.tolist(), shard_s.tolist()))
    before_s, after_s = float((before * shard_s).max()), float((after * shard_s).max())
    gain = 1 - after_s / before_s
    if gain < max(MIN_GAIN, NOISES * _noise(rows, shard_s)):
        return None
    moves = moves_to(assignment, after.tolist())
    return Rebalancing(moved(assignment, moves), moves, shard_s.tolist(), before_s, after_s)


def _noise(rows: np.ndarray, shard_s: np.ndarray) -> float:
    """By how much the ratio of two ranks' medians varies by chance, as a share: their standard deviation."""
    squares = math.fsum(((rows / shard_s - 1) ** 2).ravel())  # in no processor's own order: all ranks decide the same
    of_part = np.sqrt(squares / rows.size * len(rows) / (len(rows) - 1))
    return float(of_part * np.sqrt(2 * np.pi / 2 / len(rows)))  # of a median, sqrt(pi / 2) times that of a mean
