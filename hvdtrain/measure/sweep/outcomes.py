"""What the trials of a sweep reached, read from their runs' folders, and how their combinations of options compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.score import Score
from hvdtrain.measure.sweep.trials import RANKS, Trial, shown, written
from hvdtrain.runs.metrics import metrics_of
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import printable
from hvdtrain.views.table import spread

NONE = "–"
"""A figure that was not measured, or a value that is not known."""


class Average(NamedTuple):
    """A figure over the seeds of a combination."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one seed."""
    minimum: float
    median: float
    maximum: float

    def text(self, form: str) -> str:
        """`median (minimum to maximum)`; form: a format such as `.4f`."""
        if self.deviation is None:
            return f"{self.median:{form}}"
        return spread((self.minimum, self.median, self.maximum), form)


def average(values: Iterable[float | None]) -> Average | None:
    """Of those values that were measured; None if none was."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return Average(statistics.fmean(known), deviation, min(known), statistics.median(known), max(known))


class Outcome(NamedTuple):
    """The result of one trial. What was not measured, or is not finite, is None."""

    seed: int
    metrics: dict[str, float]
    loss: float | None
    images_per_s: float | None
    test_rows: int | None = None
    """Rows that an accuracy is a share of."""
    parameters: str = ""
    """The hash of its weights."""
    score: Score | None = None
    unit: str = "images"
    """What a row is."""
    part: str = "test"
    """Of the data that metrics and loss are on: `validation` or `test`."""
    test: dict[str, float] = {}  # noqa: RUF012  (a NamedTuple's default is never written to)
    """Test metrics of the best checkpoint, where they are on validation data."""


@dataclass
class Combination:
    """Trials that differ by their seed only."""

    values: dict[str, str]
    """All options of the sweep as text: also those that only other trials set, with the value that this one had."""
    outcomes: list[Outcome] = field(default_factory=list)
    trials: int = 0
    """How many were planned."""
    pruned: list[Score | None] = field(default_factory=list)
    """Of trials that ended early: their newest scores."""

    def __post_init__(self) -> None:
        self.label = ", ".join(f"{name} {value}" for name, value in self.values.items()) or "as given"

    @property
    def score(self) -> Average | None:
        return average(outcome.score.value for outcome in self.outcomes if outcome.score)

    def metric(self, name: str) -> Average | None:
        return average(outcome.metrics.get(name) for outcome in self.outcomes)

    def test_metric(self, name: str) -> Average | None:
        return average(outcome.test.get(name) for outcome in self.outcomes)

    @property
    def loss(self) -> Average | None:
        return average(outcome.loss for outcome in self.outcomes)

    @property
    def images_per_s(self) -> Average | None:
        return average(outcome.images_per_s for outcome in self.outcomes)

    @property
    def hashes(self) -> list[str]:
        """Of the weights, each once, in the order of seeds."""
        return list(dict.fromkeys(outcome.parameters for outcome in self.outcomes if outcome.parameters))

    @property
    def seeds(self) -> str:
        """How many have a result."""
        if self.pruned:
            return "pruned"
        done = len(self.outcomes)
        return str(done) if done == self.trials else f"{done} of {self.trials}"

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts the best first: by the median of scores, then of losses."""
        score, loss = self.score, self.loss
        is_least_best = any(outcome.score and outcome.score.is_least_best for outcome in self.outcomes)
        key = math.inf if score is None else score.median if is_least_best else -score.median
        return key, loss.median if loss else math.inf


def combinations(trials: list[Trial], folder: Path) -> list[Combination]:
    """The combinations of these trials, best first. Raises UserError for a result that no run writes."""
    names = sorted({name for trial in trials for name in trial.options})
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.label, []).append(trial)
    combined = []
    for group in groups.values():
        outcomes = list(filter(None, (_outcome(trial, folder) for trial in group)))
        runs = [RecordedRun(folder / trial.name) for trial in group]
        values = _values(group[0], names, [run.folder for run in runs])
        pruned = [_newest_score(run) for run in runs if is_pruned(run)]
        combined.append(Combination(values, outcomes, len(group), pruned))
    return sorted(combined, key=lambda combination: combination.rank)


def _outcome(trial: Trial, folder: Path) -> Outcome | None:
    run = RecordedRun(folder / trial.name)
    if not (run.folder / "result.json").is_file():
        return None
    run.result.require()
    loss, speed, rows = run.chosen.number("loss"), run.images_per_s, run.test_rows
    score, test = run.score, metrics_of(run.result.table("best").table("test").table("metrics").values)
    return Outcome(trial.seed, run.tested, loss, speed, rows, run.parameters, score, run.unit, run.part, test)


def is_pruned(run: RecordedRun) -> bool:
    """Whether a search ended the run early."""
    return bool(run.end and run.end.status == "pruned")


def _newest_score(run: RecordedRun) -> Score | None:
    """That of the newest evaluation of a run that has no result."""
    return run.score_of(run.evaluated.number("loss"), metrics_of(run.evaluated.values))


def failure(run: Path) -> str:
    """Why the run of a trial failed, as its folder says; empty where it did not, or does not say."""
    end = RunEnd.read(run)
    failed = end and end.status in ("failed", "hung") and not (run / "result.json").is_file()
    return printable(end.reason) if end and failed else ""


def _values(trial: Trial, names: list[str], runs: list[Path]) -> dict[str, str]:
    """The options' values as text; those that the trial did not set are in the records of its runs."""
    recorded: dict[str, Any] = {}
    folder = next((folder for folder in runs if (folder / "config.json").is_file()), None)
    if folder and trial.options.keys() < set(names):
        config = RecordedRun(folder).config
        recorded = {**config.table("config").texts(), **config.table("runtime").texts()}
        recorded |= {RANKS: str(config.count("ranks") or NONE)}
        config.require()
    return {
        written(name): shown(trial.options[name]) if name in trial.options else _as_written(recorded.get(name))
        for name in names
    }


def _as_written(text: str | None) -> str:
    """A recorded value, in which truth is yes or no."""
    return {None: NONE, "yes": "true", "no": "false"}.get(text, text or "")
