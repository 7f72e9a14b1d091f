"""Rows of the report's table: runs that are repetitions of each other; and the groups of rows that compare."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hvdtrain.config.option import ARGUMENT, key
from hvdtrain.config.score import ACCURACY
from hvdtrain.runs.run import LAYERS, RecordedRun, unit_of
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system.stacks import TITLES
from hvdtrain.system.text import figure

Z = 1.959964
"""Of 95 %, two-sided."""
SAME_WORK = ("data", "model", LAYERS, "machine")
"""Settings that must be equal for one speed to be better than another."""
DECIDE_LAYERS = ("model", "arg", "data", "image_size")
"""And the arguments of a task."""
MOST = "most {}/s"
"""A mark that does not say that a row is faster than others; of images or rows."""


@dataclass(frozen=True)
class ValueRange:
    low: float
    high: float

    def overlaps(self, other: ValueRange) -> bool:
        return self.low <= other.high and other.low <= self.high

    def text(self, form: str = "") -> str:
        """`low to high`; form: a format such as `.3f`, by default that of `figure`."""
        low, high = (f"{end:{form}}" if form else figure(end) for end in (self.low, self.high))
        return f"{low} to {high}"


def wilson(share: float | None, rows: int | None) -> ValueRange | None:
    """The 95 % score interval of a share of so many rows; None without both.

    Wilson, Probable inference, the law of succession, and statistical inference, JASA 22(158), 1927.
    """
    if share is None or not rows or not 0 <= share <= 1:
        return None
    center = share + Z**2 / (2 * rows)
    half = Z * math.sqrt(share * (1 - share) / rows + (Z / (2 * rows)) ** 2)
    scale = 1 + Z**2 / rows
    return ValueRange(max((center - half) / scale, 0.0), min((center + half) / scale, 1.0))


@dataclass(frozen=True)
class Spread(ValueRange):
    """The least and the greatest of some measurements, and their median."""

    median: float
    number: int
    """Runs that measured it."""
    mean: float
    deviation: float | None
    """Of the sample; None for one run."""


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of those values that were measured; None if none was."""
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    deviation = statistics.stdev(measured) if len(measured) > 1 else None
    mean, middle = statistics.fmean(measured), statistics.median(measured)
    return Spread(min(measured), max(measured), middle, len(measured), mean, deviation)


def _spreads(metrics: list[dict[str, float]]) -> dict[str, Spread | None]:
    """By name, over the runs that have it."""
    names = dict.fromkeys(name for of_run in metrics for name in of_run)
    return {name: spread(of_run.get(name) for of_run in metrics) for name in names}


def mean_shares(measured: list[StepSeconds]) -> StepSeconds | None:
    """The mean of each part, over the runs that know how long they communicate, if any does; None without runs."""
    known = [shares for shares in measured if shares.communicate is not None] or measured
    return functools.reduce(StepSeconds.plus, known, NO_TIME).shares


@dataclass
class ReportRow:
    runs: list[RecordedRun]
    notes: dict[str, str] = field(default_factory=dict)
    """Settings in which this row differs from most runs, by their names."""
    scaling: Scaling | None = None
    difference: WeightDifference | None = None
    scored_by: str = field(init=False, default="")
    """What the score is: `accuracy`, `loss` or another metric; empty if there is none."""
    part: str = field(init=False, default="test")
    """Of the data that the score is on: `validation` or `test`."""
    is_least_best: bool = field(init=False, default=False)
    chance: ValueRange | None = field(init=False)
    """Accuracies that chance in the choice of test rows gives, around the median (95 %)."""

    def __post_init__(self) -> None:
        first = self.run = self.runs[0]
        self.framework, self.strategy = str(first.options["framework"]), first.strategy
        self.size = f"{first.config.ranks} × {first.config.devices}"
        self.images_per_s = spread(run.images_per_s for run in self.runs)
        self.epoch_s, self.score = self._result("epoch_s"), self._score()
        rows = [run.test_rows for run in self.runs if run.test_rows]
        is_share = self.score and self.scored_by == ACCURACY
        self.chance = wilson(self.score.median, min(rows)) if is_share and self.score and rows else None
        self.peak_rss_mb, self.step_s, self.cores = map(self._result, ("peak_rss_mb", "step_s", "cores"))
        self.images_per_core_s = spread(run.images_per_core_s for run in self.runs)
        self.gflops_per_core = spread(run.gflops_per_core for run in self.runs)
        self.loss = spread(run.chosen.loss for run in self.runs)
        self.metrics = _spreads([run.tested for run in self.runs])
        self.of_best = _spreads([run.test_of_best for run in self.runs])
        self.shares = mean_shares([run.shares for run in self.runs if run.shares])

    def _score(self) -> Spread | None:
        """The spread of the score that the first run has."""
        scores = [score for run in self.runs if (score := run.score)]
        if scores:
            self.scored_by, self.is_least_best, self.part = scores[0].name, scores[0].is_least_best, scores[0].part
        return spread(score.value for score in scores if score.name == self.scored_by)

    def _result(self, name: str) -> Spread | None:
        return spread(getattr(run.result, name) for run in self.runs)

    @property
    def accuracies(self) -> ValueRange | None:
        """All accuracies that the runs or chance in the test rows give; None if those of chance are not known."""
        if not self.score or not self.chance:
            return None
        return ValueRange(min(self.score.low, self.chance.low), max(self.score.high, self.chance.high))

    @property
    def rank(self) -> float:
        """Sorts rows by their scores, the best first."""
        if not self.score:
            return math.inf
        return self.score.median if self.is_least_best else -self.score.median

    @property
    def note(self) -> str:
        return note_of(self.notes.items())

    @property
    def label(self) -> str:
        return f"{self.framework} {self.strategy}, {self.size}" + (f", {self.note}" if self.note else "")


class Scaling(NamedTuple):
    """How a row compares with one of a single replica."""

    kind: str
    """`strong`: both have the same global batch; `weak`: the same batch per replica; `base`: a base itself."""
    base: ReportRow
    speedup: float
    """images/s of the row divided by those of the base."""
    efficiency: float
    """Speedup divided by the number of replicas."""


class WeightDifference(NamedTuple):
    """How far a row's parameters are from those of a single process."""

    largest: float
    """max |difference| over all parameters and repetitions."""
    reference: RecordedRun


def note_of(settings: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{key(name)} {value}" for name, value in settings)


def named_layers(run: RecordedRun) -> tuple[tuple[str, str], ...]:
    """The settings that decide the layers; a checksum of these says more only where they are not enough."""
    return tuple(one for one in run.settings.items() if one[0] in DECIDE_LAYERS or one[0].startswith(ARGUMENT))


@dataclass
class RowGroup:
    """The rows of a framework; where several data sets, networks or machines are in the report, of one of each."""

    title: str
    rows: list[ReportRow] = field(default_factory=list)

    @property
    def mark(self) -> str:
        """What the fastest row is called: without or within the spread of repetitions, it may be so by chance."""
        others = [row.images_per_s for row in self.rows if row.images_per_s and row is not self.fastest]
        best = self.fastest.images_per_s if self.fastest else None
        told = best and all(other.number > 1 and best.number > 1 and not other.overlaps(best) for other in others)
        return "fastest" if told else MOST.format(self.unit)

    @property
    def unit(self) -> str:
        return unit_of(row.run for row in self.rows)

    @property
    def fastest(self) -> ReportRow | None:
        """The row of the largest median of images/s; None if it is the only one that measured it, or one of several."""
        medians = [row.images_per_s.median for row in self.rows if row.images_per_s]
        if len(medians) < 2 or medians.count(max(medians)) > 1:
            return None
        return next(row for row in self.rows if row.images_per_s and row.images_per_s.median == max(medians))


def group_rows(rows: list[ReportRow]) -> list[RowGroup]:
    """The groups, in the order of their first rows, each with its rows in their order."""
    differ = [name for name in SAME_WORK if len({row.run.settings.get(name) for row in rows}) > 1]
    networks = {(named_layers(row.run), row.run.settings.get(LAYERS)) for row in rows}
    if len(networks) == len({named for named, _ in networks}):
        differ = [name for name in differ if name != LAYERS]  # other settings say it
    groups: dict[tuple[str | None, ...], RowGroup] = {}
    for row in rows:
        values = {name: row.run.settings.get(name) for name in differ}
        known = {name: value for name, value in values.items() if value}  # a task has no --data
        shown = [value if name == "machine" else f"{name} {value}" for name, value in known.items()]
        title = ", ".join([TITLES.get(row.framework, row.framework), *shown])
        groups.setdefault((row.framework, *values.values()), RowGroup(title)).rows.append(row)
    return list(groups.values())
