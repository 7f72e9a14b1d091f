"""Rows of the report's table: runs that are repetitions of each other, and how they compare with other rows."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.views.report.intervals import Interval, wilson
from hvdtrain.views.report.runs import FinishedRun


class Spread(NamedTuple):
    """A figure over repetitions."""

    median: float
    minimum: float
    maximum: float
    number: int
    """Runs that measured it."""

    @property
    def range(self) -> Interval:
        return Interval(self.minimum, self.maximum)


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of those values that were measured; None if none was."""
    measured = [value for value in values if value is not None]
    return Spread(statistics.median(measured), min(measured), max(measured), len(measured)) if measured else None


def mean_shares(measured: list[StepTime]) -> StepTime | None:
    """The mean of each part, over the runs that know how long they communicate, if any does; None without runs."""
    known = [shares for shares in measured if shares.communicate is not None] or measured
    return functools.reduce(StepTime.plus, known, NO_TIME).shares


@dataclass
class Row:
    """Runs that are repetitions of each other."""

    runs: list[FinishedRun]
    note: str = ""
    """Settings in which this row differs from most runs."""
    scaling: Scaling | None = None
    difference: WeightDifference | None = None
    chance: Interval | None = field(init=False)
    """Accuracies that chance in the choice of test rows gives, around the median (95 %)."""

    def __post_init__(self) -> None:
        first = self.run = self.runs[0]
        self.framework, self.strategy = str(first.options["framework"]), first.strategy
        self.size = f"{first.ranks} × {first.devices}"
        self.images_per_s = spread(run.images_per_s for run in self.runs)
        self.epoch_s = spread(run.epoch_s for run in self.runs)
        self.accuracy = spread(run.accuracy for run in self.runs)
        rows = [run.test_rows for run in self.runs if run.test_rows]
        self.chance = wilson(self.accuracy.median, min(rows)) if self.accuracy and rows else None
        self.peak_rss_mb = spread(run.peak_rss_mb for run in self.runs)
        self.step_s = spread(run.step_s for run in self.runs)
        self.images_per_core_s = spread(run.images_per_core_s for run in self.runs)
        self.gflops_per_core = spread(run.gflops_per_core for run in self.runs)
        self.cores = spread(run.cores for run in self.runs)
        self.shares = mean_shares([run.shares for run in self.runs if run.shares])

    @property
    def accuracies(self) -> Interval | None:
        """All accuracies that the runs or chance in the test rows give; None if those of chance are not known."""
        if not self.accuracy or not self.chance:
            return None
        low, high = self.accuracy.range
        return Interval(min(low, self.chance.low), max(high, self.chance.high))

    @property
    def label(self) -> str:
        return f"{self.framework} {self.strategy}, {self.size}" + (f", {self.note}" if self.note else "")


class Scaling(NamedTuple):
    """How a row compares with one of a single replica."""

    kind: str
    """`strong`: both have the same global batch; `weak`: the same batch per replica; `base`: a base itself."""
    base: Row
    speedup: float
    """images/s of the row divided by those of the base."""
    efficiency: float
    """Speedup divided by the number of replicas."""
    serial_fraction: float | None
    """Karp-Flatt metric, for strong scaling over more than one replica."""


class WeightDifference(NamedTuple):
    """How far a row's parameters are from those of a single process."""

    largest: float | None
    """max |difference| over all parameters and repetitions; None for the run that others are compared with."""
    reference: FinishedRun


def count_of(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
