"""Who computes how many shards (`--balance`), by the time that a shard took each rank: they move at logging steps.

Which rank computes a shard has no influence on the bits. In a step all wait for the rank that takes longest for its
shards, so a rank that takes twice as long for each should have half as many. All ranks know the times of all from the
logging steps, and so each decides by itself, and they decide the same.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.groups import by_rank
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system.text import format_ranks
from hvdtrain.training.observer import Observer, Pause
from hvdtrain.training.ranks import LoggedInterval
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import RunContext

PART_S = 1.0
"""The time of shards is measured over parts of so many seconds: within less, chance decides."""
LENGTHS = (5, 10, 20, 40, 80)
"""Numbers of the newest parts over which ranks are compared: the longer, the smaller the differences that are seen."""
MIN_GAIN = 0.1
"""Shards move if the slowest rank then takes less for its shards by this share or more, ..."""
NOISES = 4.0
"""... and by more than this multiple of what chance makes of it: in simulations (`tests/unit/training/test_balance.py`)
ranks whose parts vary by up to 30 % keep their shards."""


class Rebalancing(NamedTuple):
    """Another assignment, what is different in it, and the times that led to it."""

    assignment: Assignment
    moves: list[tuple[int, int, int]]
    """Shards, and the ranks that computed each and will compute it, by position."""
    shard_s: list[float]
    """What a shard takes each rank."""
    before_s: float
    after_s: float
    """What a step's shards take the slowest rank: measured, and to be expected."""


def balanced(counts: Sequence[int], shard_s: Sequence[float]) -> list[int]:
    """The numbers of shards by which the slowest rank takes least for its own; each rank keeps at least one.

    counts: the present numbers, by rank. shard_s: what a shard takes each rank. Counts change as little as possible.

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


def moved(assignment: Assignment, counts: Sequence[int]) -> tuple[Assignment, list[tuple[int, int, int]]]:
    """The assignment with so many shards for each rank, and the moves to it.

    Shards stay in ranges that follow each other, so that each rank sends few sums (`collectives.tree_sum`): where one
    rank gives and another gets, those between them pass shards on.
    """
    ends = [0, *itertools.accumulate(counts)]
    after = Assignment(tuple(tuple(range(first, end)) for first, end in itertools.pairwise(ends)))
    before, new = ({shard: rank for rank, of in enumerate(one.by_rank) for shard in of} for one in (assignment, after))
    return after, [(shard, before[shard], rank) for shard, rank in new.items() if before[shard] != rank]


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
            received = np.array(change.assignment.counts) - counts
            is_reversed = bool((received * self._last_change < 0).any())
            self._lengths = (self._lengths[1:] or self._lengths) if is_reversed else LENGTHS
            self._last_change = received
            self._begin(change.assignment)
        return change


def better(assignment: Assignment, window: Sequence[np.ndarray]) -> Rebalancing | None:
    """A change of the assignment that makes steps shorter, beyond chance. window: see `Balancer`."""
    rows, before = np.array(window), np.array(assignment.counts)
    shard_s = np.median(rows, axis=0)
    after = np.array(balanced(before.tolist(), shard_s.tolist()))
    before_s, after_s = float((before * shard_s).max()), float((after * shard_s).max())
    gain = 1 - after_s / before_s
    squares = math.fsum(((rows / shard_s - 1) ** 2).ravel())  # in no processor's own order: all ranks decide the same
    of_part = np.sqrt(squares / rows.size * len(rows) / (len(rows) - 1))
    noise = float(of_part * np.sqrt(2 * np.pi / 2 / len(rows)))  # of the ratio of two medians, as a share
    if gain < max(MIN_GAIN, NOISES * noise):
        return None
    return Rebalancing(*moved(assignment, after.tolist()), shard_s.tolist(), before_s, after_s)


class Balancing(Observer):
    """Moves shards from slow ranks to fast ones: the step after a logging step has them. Every rank decides the same.

    It comes after `reporter`, which looks at an interval with the shards that ranks had in it.
    """

    def __init__(self, run: RunContext, reporter: Reporter) -> None:
        self._run, self._reporter = run, reporter
        self._step = 0
        """The step of the last logging step."""
        self._balancer = Balancer(run.assignment)

    def started(self, at: Position) -> None:
        self._step = at.step

    def renewed(self, at: Position, pause: Pause) -> None:
        """All ranks begin anew, as those that join know no times."""
        self._run.assign(None)
        self._balancer = Balancer(self._run.assignment)

    def joined(self, at: Position, interval: LoggedInterval) -> None:
        run, steps = self._run, at.step - self._step
        self._step = at.step
        if not run.parts > run.group.size > 1 or run.runtime.balance == "off" or steps <= 0:
            return
        if change := self._balancer.add(steps, interval.times):
            run.assign(change.assignment)
            self._report(at, change)

    def _report(self, at: Position, change: Rebalancing) -> None:
        group, why = self._run.group, explained(change, self._run.group.ranks)
        counts, ranks = by_rank(group, change.assignment.counts), group.ranks
        moves = [(shard, ranks[giver], ranks[receiver]) for shard, giver, receiver in change.moves]
        givers, receivers = (format_ranks({move[place] for move in moves}) for place in (1, 2))
        self._reporter.show(
            f"{len(moves)} shard(s) move from rank {givers} to {receivers}: {why}; the ranks now have "
            f"{', '.join(map(str, change.assignment.counts))}"
        )
        self._reporter.record("shards", at, counts=counts, moved=moves, why=why)


def explained(change: Rebalancing, ranks: Sequence[int]) -> str:
    """Why shards move, for people: of the ranks that give and get most, what a shard takes each.

    ranks: those that train, by position.
    """
    gains = Counter(receiver for *_, receiver in change.moves)
    gains.subtract(giver for _, giver, _ in change.moves)  # of those between them, nothing is left
    (receiver, _), *_, (giver, _) = gains.most_common()
    return (
        f"a shard takes rank {ranks[giver]} {_ms(change.shard_s[giver])} and rank {ranks[receiver]} "
        f"{_ms(change.shard_s[receiver])}, "
        f"and the slowest rank {_ms(change.after_s)} for those of a step instead of {_ms(change.before_s)}"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
