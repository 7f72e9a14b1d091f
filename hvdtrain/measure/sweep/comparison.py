"""How the combinations of a sweep compare: its table for the terminal, as Markdown and as CSV, and a plot."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.score import LOSS
from hvdtrain.measure.sweep.study import signed
from hvdtrain.measure.sweep.trials import COMPLETE, PRUNED, Trial, shown, written
from hvdtrain.runs import plots
from hvdtrain.runs.metrics import metrics_of
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.text import printable
from hvdtrain.views.report.comparison import bit_sentences
from hvdtrain.views.table import Column, Section, Table, escape, figure_form, paragraph, spread, text_column, to_csv

NONE = "–"
"""A figure that was not measured, or a value that is not known."""
SPEED = "images_per_s"
LOG_RATIO = 30
"""Of the greatest and the least number of an option, from which its axis is logarithmic."""
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    **{"mean": statistics.fmean, "deviation": statistics.stdev},
    **{"minimum": min, "median": statistics.median, "maximum": max},
}
"""Of a figure over the seeds, in CSV."""


class Combination(NamedTuple):
    options: dict[str, str]
    """All options of the sweep, and their values."""
    runs: list[RecordedRun]
    """Those with a result, in the order of seeds."""
    trials: int
    """How many were planned."""
    pruned: int
    """How many ended early."""

    @property
    def hashes(self) -> list[str]:
        return list(dict.fromkeys(run.result.parameters for run in self.runs if run.result.parameters))

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts the best first: by the median of scores, then of losses."""
        scores, losses = [-signed(run.score) for run in self.runs if run.score], self.measured(LOSS)
        return statistics.median(scores or [math.inf]), statistics.median(losses or [math.inf])

    def measured(self, name: str) -> list[float]:
        """The figure of this name in CSV, of the runs that measured it."""
        values = (_figures(run).get(name, ("", None))[1] for run in self.runs)
        return [value for value in values if value is not None]

    def cells(self, names: list[str]) -> list[str]:
        """The cells of its row: the options, how many seeds have a result, these figures, and the hash of weights."""
        done = len(self.runs)
        seeds = PRUNED if self.pruned else str(done) if done == self.trials else f"{done} of {self.trials}"
        weights = f"{len(self.hashes)} hashes" if len(self.hashes) > 1 else next(iter(self.hashes), NONE)
        figures = (_cell(name, self.measured(name)) for name in names)
        return [*map(printable, self.options.values()), seeds, *figures, weights]


def _figures(run: RecordedRun) -> dict[str, tuple[str, float | None]]:
    """The heading and the value of each figure, by its name in CSV.

    Where trials are compared by validation data, there are also the test metrics of the best checkpoint.
    """
    best = run.result.best
    of_test = metrics_of((best and best.test and best.test.metrics) or {})
    return {
        **{printable(name): (f"{run.part} {printable(name)}", value) for name, value in run.tested.items()},
        **{f"test_{printable(name)}": (f"test {printable(name)}", value) for name, value in of_test.items()},
        LOSS: (f"{run.part} {LOSS}", run.chosen.loss),
        SPEED: (f"{run.unit}/s", run.images_per_s),
    }


def _cell(name: str, values: list[float]) -> str:
    if not values:
        return NONE
    form = ",.0f" if name == SPEED else figure_form(statistics.median(values))
    return f"{values[0]:{form}}" if len(values) == 1 else spread(values, form)


class SweepResults:
    """What the trials of a sweep have measured, in one row for each combination, best first."""

    def __init__(self, trials: list[Trial], folder: Path) -> None:
        """folder: of the sweep. Raises UserError for a result that no run writes."""
        names = sorted({name for trial in trials for name in trial.options})
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(trial.label, []).append(trial)
        self.rows = []
        for group in groups.values():
            options = {written(name): shown(group[0].options.get(name, NONE)) for name in names}
            status = [trial.status(folder) for trial in group]
            complete = [trial for trial, ended in zip(group, status, strict=True) if ended == COMPLETE]
            found = [RecordedRun(folder / trial.name).decoded() for trial in complete]
            self.rows.append(Combination(options, found, len(group), status.count(PRUNED)))
        self.rows.sort(key=lambda row: row.rank)
        runs = [run for row in self.rows for run in row.runs]
        self.score = next((run.score for run in runs if run.score), None)
        """That of the first trial that has one, by whose name trials are compared."""
        self._weights = bit_sentences(runs)
        self._figures = self._headings(runs)

    def _headings(self, runs: list[RecordedRun]) -> dict[str, str]:
        """The headings of figures, by their names in CSV: the score, then other metrics, the loss, the speed."""
        found = {name: heading for run in runs for name, (heading, _) in _figures(run).items()}
        found = found or {LOSS: f"test {LOSS}", SPEED: "rows/s"}
        title = printable(self.score.title) if self.score else ""
        order = sorted(found, key=lambda name: (found[name] != title, name == SPEED, name == LOSS))
        return {name: found[name] for name in order}

    @property
    def _definition(self) -> str:
        """What the figures of the table are, and in which order its rows."""
        order = "best score"
        if self.score:
            order = f"{'lowest' if self.score.is_least_best else 'highest'} {printable(self.score.title)}"
        pruned = sum(bool(row.pruned) for row in self.rows)
        ended = f" {pruned} of {len(self.rows)} combinations ended early (pruned)." if pruned else ""
        return f"Median over the seeds, with minimum and maximum; {order} first.{ended}"

    @property
    def _table(self) -> Table:
        figures = "seeds", *self._figures.values(), "hash of weights"
        columns = [Column(heading, priority=at) for at, heading in enumerate(figures)]
        rows = [row.cells([*self._figures]) for row in self.rows]
        return Table([*map(text_column, self.rows[0].options), *columns], [Section(rows)])

    def terminal(self) -> str:
        sentences = [paragraph(sentence) for sentence in (*self._weights, self._definition)]
        return "\n\n".join([self._table.terminal(), *sentences])

    def markdown(self, command: list[str], failures: dict[str, str]) -> str:
        """A page with the command, the table, what is to be said of it, and why trials failed, by their names."""
        failed = "".join(f"- {escape(printable(f'{name}: {reason}'))}\n" for name, reason in failures.items())
        parts = [
            f"# Sweep\n\n    hvdtrain {printable(shlex.join(command))}\n",
            f"{escape(self._definition)}\n",
            self._table.markdown(),
            *(f"{escape(sentence)}\n" for sentence in self._weights),
            *([f"## Failed trials\n\n{failed}"] if failed else []),
        ]
        return "\n".join(parts)

    def csv(self) -> str:
        """One line for each combination, with numbers in full precision."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {name: printable(text) for name, text in row.options.items()}
            record |= {"seeds": len(row.runs), "seeds_planned": row.trials, "pruned": row.pruned}
            for name in self._figures:
                values = row.measured(name)
                for key, of in STATISTICS.items():
                    record[f"{name}_{key}"] = of(values) if len(values) > (key == "deviation") else None
            records.append({**record, "parameters": " ".join(row.hashes)})
        return to_csv(records)

    def plot(self) -> bytes | None:
        """The score over each option that has several values, as PNG; None if no trial has a score.

        Raises MissingPackage without Matplotlib.
        """
        scored = [row for row in self.rows if math.isfinite(row.rank[0])]
        names = [name for name in self.rows[0].options if len({row.options[name] for row in scored}) > 1]
        names = names or [*self.rows[0].options]
        if not self.score or not scored or not names:
            return None
        sign = 1 if self.score.is_least_best else -1
        with plots.drawing():
            figure = plots.new_figure(3.5 * len(names), 4)
            axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
            for axis, name in zip(axes, names, strict=True):
                values = _numbers([row.options[name] for row in scored])
                axis.plot(values, [sign * row.rank[0] for row in scored], "o")
                if isinstance(values[0], float) and min(values) > 0 and max(values) > LOG_RATIO * min(values):
                    axis.set_xscale("log")
                    axis.xaxis.set_major_formatter("{x:g}")
                axis.set_xlabel(printable(name))
            axes[0].set_ylabel(printable(self.score.title))
            return plots.encode(figure, "png")


def _numbers(texts: list[str]) -> list[Any]:
    """The values of an option for an axis: numbers if all of them are, else texts."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        return [*map(printable, texts)]
