"""How the combinations of a sweep compare: its table for the terminal, as Markdown and as CSV, and a plot."""

from __future__ import annotations

import math
import shlex
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.score import LOSS, Score
from hvdtrain.measure.sweep.ranges import import_optuna
from hvdtrain.measure.sweep.study import SweepStudy, is_pruned, signed
from hvdtrain.measure.sweep.trials import Trial, has_result, shown, written
from hvdtrain.runs import plots
from hvdtrain.runs.metrics import metrics_of
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.text import printable
from hvdtrain.views.report.rows import score_form
from hvdtrain.views.table import Column, Section, Table, escape, spread, text_column, to_csv

NONE = "–"
"""A figure that was not measured, or a value that is not known."""
SPEED = "images_per_s"
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    **{"mean": statistics.fmean, "deviation": statistics.stdev},
    **{"minimum": min, "median": statistics.median, "maximum": max},
}
"""Of a figure over the seeds, in CSV."""


class Combination(NamedTuple):
    """Trials that differ by their seed only."""

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


def _figures(run: RecordedRun) -> dict[str, tuple[str, float | None]]:
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
        runs = [RecordedRun(folder / trial.name) for trial in group if has_result(trial, folder)]
        for run in runs:
            run.result.require()
        pruned = sum(is_pruned(RecordedRun(folder / trial.name)) for trial in group)
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


def definition(combinations: list[Combination]) -> str:
    """What the figures of the table are, and in which order its rows."""
    score = score_of(combinations)
    order = f"{'lowest' if score.is_least_best else 'highest'} {printable(score.title)}" if score else "best score"
    pruned = sum(bool(row.pruned) for row in combinations)
    ended = f" {pruned} of {len(combinations)} combinations ended early (pruned)." if pruned else ""
    return f"Median over the seeds, with minimum and maximum; {order} first.{ended}"


def _columns(combinations: list[Combination]) -> list[Column]:
    names = ("seeds", *headings(combinations).values(), "hash of weights")
    return [Column(name, priority=at) for at, name in enumerate(names)]


def _cells(combinations: list[Combination]) -> list[list[str]]:
    names = headings(combinations)
    return [[row.seeds, *(_cell(name, row.measured(name)) for name in names), _hash(row)] for row in combinations]


def _cell(name: str, values: list[float]) -> str:
    """The median over the seeds, with minimum and maximum."""
    if not values:
        return NONE
    form = ",.0f" if name == SPEED else score_form(statistics.median(values))
    return f"{values[0]:{form}}" if len(values) == 1 else spread(values, form)


def _hash(row: Combination) -> str:
    return f"{len(row.hashes)} hashes" if len(row.hashes) > 1 else next(iter(row.hashes), NONE)


def terminal_table(combinations: list[Combination]) -> str:
    """The table for the terminal."""
    labels = [", ".join(f"{name} {value}" for name, value in row.options.items()) for row in combinations]
    rows = [[label or "as given", *cells] for label, cells in zip(labels, _cells(combinations), strict=True)]
    return Table([text_column("options"), *_columns(combinations)], [Section(rows)]).terminal()


def markdown_page(
    combinations: list[Combination], command: list[str], failures: list[str], sentences: list[str]
) -> str:
    """A page with the command, the table, what is to be said of it, and the trials that failed, if any did."""
    columns = [*map(text_column, combinations[0].options), *_columns(combinations)]
    options = [map(printable, row.options.values()) for row in combinations]
    rows = [[*values, *cells] for values, cells in zip(options, _cells(combinations), strict=True)]
    failed = "".join(f"- {escape(printable(failure))}\n" for failure in failures)
    parts = [
        f"# Sweep\n\n    hvdtrain {printable(shlex.join(command))}\n",
        f"{escape(definition(combinations))}\n",
        Table(columns, [Section(rows)]).markdown(),
        *(f"{escape(sentence)}\n" for sentence in sentences),
        *([f"## Failed trials\n\n{failed}"] if failed else []),
    ]
    return "\n".join(parts)


def csv_page(combinations: list[Combination]) -> str:
    """One line for each combination, with numbers in full precision."""
    names, records = headings(combinations), []
    for row in combinations:
        record: dict[str, Any] = {name: printable(text) for name, text in row.options.items()}
        record |= {"seeds": len(row.runs), "seeds_planned": row.trials, "pruned": row.pruned}
        for name in names:
            values = row.measured(name)
            for key, of in STATISTICS.items():
                record[f"{name}_{key}"] = of(values) if len(values) > (key == "deviation") else None
        records.append({**record, "parameters": " ".join(row.hashes)})
    return to_csv(records)


def draw(study: SweepStudy, score: Score | None) -> bytes | None:
    """The score over each option that has several values, as PNG; None if no trial has a score.

    score: of any trial. Raises MissingPackage without Matplotlib.
    """
    optuna = import_optuna()
    finished = [frozen for frozen in study.frozen if frozen.state == optuna.trial.TrialState.COMPLETE]
    complete = [(frozen, value) for frozen in finished for value in frozen.values or () if math.isfinite(value)]
    if not complete or not score:
        return None
    names = sorted({name for frozen, _ in complete for name in frozen.params})
    values = {name: list(dict.fromkeys(frozen.params.get(name, NONE) for frozen, _ in complete)) for name in names}
    plotted, choice = optuna.create_study(), optuna.distributions.CategoricalDistribution
    for frozen, value in complete:
        distributions = {  # the same choices in all trials, which a grid that grew does not have
            name: choice(values[name]) if isinstance(known, choice) else known
            for name, known in frozen.distributions.items()
        }
        shown = -value if score.is_least_best else value
        plotted.add_trial(optuna.trial.create_trial(value=shown, params=frozen.params, distributions=distributions))
    varied = [name for name in names if len(values[name]) > 1] or names
    with plots.drawing(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls the function experimental
        import matplotlib.pyplot

        matplotlib.use("agg")
        title = printable(score.title)
        optuna.visualization.matplotlib.plot_slice(plotted, varied, target=lambda trial: trial.value, target_name=title)
        figure = matplotlib.pyplot.gcf()
        for axis in figure.axes[: len(varied)]:
            axis.set_xlabel(printable(written(axis.get_xlabel())))
        matplotlib.pyplot.close(figure)
        return plots.encode(figure, "png")
