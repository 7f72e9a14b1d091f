"""The time of steps: where it goes on this rank, how many images it is per second, and which ranks are slower."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.console import log
from hvdtrain.runs.step_times import NO_TIME, WINDOW_S, SlowRank, StepSeconds, slow_ranks
from hvdtrain.system import rank_info
from hvdtrain.system.phases import CHECKPOINT, DATA, EVALUATION, EVALUATION_DATA, LOGGING, LOOP, RENEWING, START, phases
from hvdtrain.system.text import finite_number
from hvdtrain.training.observer import Observer

PART_S = 1.0
"""A window's parts take this long: logging steps that are shorter count together, as within less chance decides."""
MIN_PARTS = 3
"""A window has so many parts, even if they take longer than WINDOW_S."""


class StepTimer:
    """Times the steps of this rank: what `phases` says belongs to a step, without evaluations, checkpoints and sums.

    group: tells how long this rank communicates.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._taken = NO_TIME
        """Of all steps when `take` was called last."""
        self._state: tuple[StepSeconds, StepSeconds | None] = NO_TIME, None
        """Of all steps up to that moment, and the beginning of the present steps: one value, so that a reader in
        another thread sees both."""

    def on_step_time(self, begins: bool) -> None:
        """Time of steps begins, or ends; see `Phases.start_run`."""
        total, began = self._state
        if begins:
            self._state = total, self._read()
            return
        self._state = total.plus(self._since(began)), None

    def take(self) -> StepSeconds:
        """What the steps took since this was called last; call it outside of steps."""
        before, self._taken = self._taken, self.total
        return self._taken.minus(before)

    @property
    def total(self) -> StepSeconds:
        """Of all steps of this run in this process; for any thread."""
        total, began = self._state
        return total.plus(self._since(began))

    def _read(self) -> StepSeconds:
        """The clocks: the difference of two readings is the time between them."""
        communicate_s, data_s = self._group.communicate_s, phases.seconds(DATA)
        return StepSeconds(time.perf_counter() - (communicate_s or 0.0) - data_s, communicate_s, data_s)

    def _since(self, began: StepSeconds | None) -> StepSeconds:
        return self._read().minus(began) if began else NO_TIME


class StepsInterval(NamedTuple):
    steps: int
    seconds: float
    """Of training, without evaluations and checkpoints."""
    images_per_s: float
    """Rows of the data: those that pad a batch do not count."""
    outside_s: float
    """In the loop, between the framework's steps."""
    waited_s: float
    """For data."""

    @property
    def record(self) -> dict[str, float]:
        return {"images_per_s": self.images_per_s, "outside_s": self.outside_s, "data_wait_s": self.waited_s}


def wait_share(intervals: Sequence[StepsInterval]) -> float:
    """Time in which steps waited for data, as a share of that of these intervals."""
    return sum(each.waited_s for each in intervals) / (sum(each.seconds for each in intervals) or 1.0)


PAUSES = (START, CHECKPOINT, EVALUATION, EVALUATION_DATA, RENEWING)
"""Phases in which a run does not train."""


class Throughput(Observer):
    """at: where training begins."""

    def __init__(self, at: Position) -> None:
        self.intervals: list[StepsInterval] = []
        self._begin(at)

    def _begin(self, at: Position) -> None:
        self._at, self._before = at, self._read()

    @staticmethod
    def _read() -> np.ndarray:
        """Clocks of training, of the loop in it, and of waiting for data, in s."""
        training_s = time.perf_counter() - phases.seconds(*PAUSES)
        return np.array([training_s, phases.seconds(LOOP, DATA, LOGGING), phases.seconds(DATA)])

    def recall(self, records: Sequence[Mapping[str, Any]], global_batch: int) -> None:
        """Take the intervals of an earlier process from its records of logging steps."""
        last = 0
        for record in records:
            rate, outside_s, waited_s = (
                finite_number(record.get(name)) for name in ("images_per_s", "outside_s", "data_wait_s")
            )
            if rate:
                steps, last = record["step"] - last, record["step"]
                seconds = steps * global_batch / rate
                self.intervals.append(StepsInterval(steps, seconds, rate, outside_s or 0.0, waited_s or 0.0))

    def interval(self, at: Position) -> StepsInterval | None:
        """End the interval here, of steps of an epoch, and begin the next; None without a step."""
        steps, before = at.step - self._at.step, self._at.rows_in_epoch if self._at.epoch == at.epoch else 0
        if steps == 0:
            return None
        seconds, outside_s, waited_s = (self._read() - self._before).tolist()
        rate = (at.rows_in_epoch - before) / seconds
        self.intervals.append(StepsInterval(steps, seconds, rate, outside_s, waited_s))
        self._begin(at)
        return self.intervals[-1]

    @property
    def images_per_s(self) -> float:
        """Of the median interval, without the first one, which warms up, if there are others; 0 before the first."""
        return _median([interval.images_per_s for interval in self.intervals])

    @property
    def seconds_per_step(self) -> float:
        """Of the median interval, as `images_per_s`."""
        return _median([interval.seconds / interval.steps for interval in self.intervals])

    @property
    def outside_share(self) -> float:
        """Time in the loop, between the framework's steps, as a share of all training time."""
        seconds = sum(interval.seconds for interval in self.intervals)
        return sum(interval.outside_s for interval in self.intervals) / (seconds or 1.0)


def _median(values: list[float]) -> float:
    return float(np.median(values[1:] or values or [0.0]))


RECOVERED = "%s is as fast as the other ranks again"


class SlowRanks:
    """Compares the ranks at each logging step; warns of one that is slow, once until it has recovered."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._work: list[int] = []
        """How much each rank computed in the steps of the window, see `slow_ranks`."""
        self._hosts: list[str] = []
        self._warm = False
        self._part: list[StepSeconds] = []
        """Of the logging steps that will be a part of the window, by rank."""
        self._window: deque[list[StepSeconds]] = deque()
        self._evaluations: deque[list[StepSeconds]] = deque(maxlen=MIN_PARTS)
        self._slow: dict[tuple[int, str], str] = {}
        """Ranks that are slow, by position, what takes them so long, and by how much."""
        self._slow_in_evaluations: set[int] = set()

    @property
    def figures(self) -> list[str]:
        ranks = self._group.ranks
        return [f"rank {ranks[place]} is slow ({much})" for (place, _), much in sorted(self._slow.items())]

    def started(self) -> None:
        """Learn where the ranks are; call it on every rank."""
        self._hosts = self._group.gather(rank_info.host_name())

    def add(self, times: Sequence[StepSeconds], work: Sequence[int] = ()) -> None:
        """How long the steps since the last logging step took each rank. work: how much each computes in a step.

        The first ones, in which frameworks warm up, are left out. When work moves between ranks, the window is empty.
        """
        if not self._warm:
            self._warm = True
            return
        if list(work) != self._work:
            self._work, self._part = list(work), []
            self._window.clear()
        part = self._part or [NO_TIME] * len(times)
        self._part = [time.plus(other) for time, other in zip(part, times, strict=True)]
        if _seconds(self._part) < PART_S:
            return
        self._window.append(self._part)
        self._part = []
        window = self._window
        while len(window) > MIN_PARTS and sum(map(_seconds, window)) - _seconds(window[0]) >= WINDOW_S:
            window.popleft()
        if len(window) >= MIN_PARTS and sum(map(_seconds, window)) >= WINDOW_S:
            self._compare()

    def _compare(self) -> None:
        slow = {(rank.rank, rank.part): rank for rank in slow_ranks(self._window, frozenset(self._slow), self._work)}
        for key in [key for key in self._slow if key not in slow]:
            del self._slow[key]
            fewer = bool(self._work) and self._work[key[0]] + 1 < max(self._work)
            text = "%s has fewer shards, and no rank waits for it any longer" if fewer else RECOVERED
            log.warning(text, self._who(key[0]))
        for key, rank in sorted(slow.items()):
            if key not in self._slow:
                self._name(key, rank)

    def _name(self, key: tuple[int, str], slow: SlowRank) -> None:
        if slow.part == "compute":
            self._slow[key], how = f"{slow.ratio:.1f}x", f"computes {slow.ratio:.1f} times as long as"
            remedy = "see what else runs on that host, and check it with python -m hvdtrain doctor"
        else:
            share = slow.more_s / sum(map(_seconds, self._window))
            self._slow[key], how = f"data {share:.0%}", f"waits for data for {share:.0%} more of the time than"
            remedy = "raise --workers, or check the disk of that host"
        text = "%s is slow: it %s the other ranks, which wait for it in each step: %s"
        log.warning(text, self._who(slow.rank), how, remedy)

    def add_evaluation(self, seconds: Sequence[float], work: Sequence[int]) -> None:
        """What each rank took for its share of an evaluation: one that is slow in the last ones is named, once.

        In a short one, a rank that has lost its core once looks slow.
        """
        self._evaluations.append([StepSeconds(taken, 0.0, 0.0) for taken in seconds])
        if len(self._evaluations) < MIN_PARTS:
            return
        slow = {rank.rank: rank for rank in slow_ranks(self._evaluations, work=work)}
        for place in sorted(slow.keys() - self._slow_in_evaluations):
            text = "%s is slow: it takes %.1f times as long for its share of the evaluations as the other ranks: %s"
            remedy = "in training they wait for it: check that host with python -m hvdtrain doctor"
            log.warning(text, self._who(place), slow[place].ratio, remedy)
        self._slow_in_evaluations = {*slow}

    def _who(self, place: int) -> str:
        return f"rank {self._group.ranks[place]} on {self._hosts[place]}"


def _seconds(part: Sequence[StepSeconds]) -> float:
    """How long these steps took, on the rank that took longest."""
    return max(time.total for time in part)
