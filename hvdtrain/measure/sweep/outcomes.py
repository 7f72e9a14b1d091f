"""What the trials of a sweep reached, read from their runs' folders, and how their combinations of options compare."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import NamedTuple

from hvdtrain.config.score import LOSS, Score
from hvdtrain.measure.sweep.study import is_pruned, signed
from hvdtrain.measure.sweep.trials import Trial, has_result, shown, written
from hvdtrain.runs.metrics import metrics_of
from hvdtrain.runs.run import Run
from hvdtrain.system.text import printable

NONE = "–"
"""A figure that was not measured, or a value that is not known."""
SPEED = "images_per_s"


class Combination(NamedTuple):
    """Trials that differ by their seed only."""

    options: dict[str, str]
    """All options of the sweep, and their values."""
    runs: list[Run]
    """Those with a result, in the order of seeds."""
    trials: int
    """How many were planned."""
    pruned: int
    """How many ended early."""

    @property
    def hashes(self) -> list[str]:
        """Of the weights, each once."""
        return list(dict.fromkeys(run.parameters for run in self.runs if run.parameters))

    @property
    def seeds(self) -> str:
        """How many have a result."""
        done = len(self.runs)
        return "pruned" if self.pruned else str(done) if done == self.trials else f"{done} of {self.trials}"

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts the best first: by the median of scores, then of losses."""
        scores, losses = [-signed(run.score) for run in self.runs if run.score], self.measured(LOSS)
        return statistics.median(scores or [math.inf]), statistics.median(losses or [math.inf])

    def measured(self, name: str) -> list[float]:
        """The figure of this name in CSV, of the runs that measured it."""
        values = (_figures(run).get(name, ("", None))[1] for run in self.runs)
        return [value for value in values if value is not None]


def _figures(run: Run) -> dict[str, tuple[str, float | None]]:
    """The heading and the value of each figure, by its name in CSV.

    Where trials are compared by validation data, there are also the test metrics of the best checkpoint.
    """
    of_test = metrics_of(run.result.table("best").table("test").table("metrics").values)
    return {
        **{printable(name): (f"{run.part} {printable(name)}", value) for name, value in run.tested.items()},
        **{f"test_{printable(name)}": (f"test {printable(name)}", value) for name, value in of_test.items()},
        LOSS: (f"{run.part} {LOSS}", run.chosen.number("loss")),
        SPEED: (f"{run.unit}/s", run.images_per_s),
    }


def combinations(trials: list[Trial], folder: Path) -> list[Combination]:
    """The combinations of these trials, best first. Raises UserError for a result that no run writes."""
    names = sorted({name for trial in trials for name in trial.options})
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.label, []).append(trial)
    combined = []
    for group in groups.values():
        texts = {name: shown(value) for name, value in group[0].options.items()}
        runs = [Run(folder / trial.name) for trial in group if has_result(trial, folder)]
        for run in runs:
            run.result.require()
        pruned = sum(is_pruned(Run(folder / trial.name)) for trial in group)
        options = {written(name): texts.get(name, NONE) for name in names}
        combined.append(Combination(options, runs, len(group), pruned))
    return sorted(combined, key=lambda combination: combination.rank)


def score_of(combinations: list[Combination]) -> Score | None:
    """That of the first trial that has one, by whose name trials are compared."""
    return next((run.score for row in combinations for run in row.runs if run.score), None)


def headings(combinations: list[Combination]) -> dict[str, str]:
    """The headings of the figures, by their names in CSV: the score first, then other metrics, the loss, the speed."""
    runs, score = [run for row in combinations for run in row.runs], score_of(combinations)
    found = {name: heading for run in runs for name, (heading, _) in _figures(run).items()}
    found = found or {LOSS: f"test {LOSS}", SPEED: "rows/s"}
    title = printable(score.title) if score else ""
    order = sorted(found, key=lambda name: (found[name] != title, name == SPEED, name == LOSS))
    return {name: found[name] for name in order}
