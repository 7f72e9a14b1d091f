"""What a sweep shows: its table for the terminal, as Markdown and as CSV, and a plot of what its options do."""

from __future__ import annotations

import math
import shlex
import statistics
import warnings
from collections.abc import Callable
from typing import Any

from hvdtrain.config.score import Score
from hvdtrain.measure.sweep.outcomes import NONE, SPEED, Combination, headings, score_of
from hvdtrain.measure.sweep.ranges import import_optuna
from hvdtrain.measure.sweep.study import SweepStudy
from hvdtrain.measure.sweep.trials import written
from hvdtrain.runs import plots
from hvdtrain.system.text import printable
from hvdtrain.views.report.rows import score_form
from hvdtrain.views.table import Column, Section, Table, escape, spread, text_column, to_csv

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    **{"mean": statistics.fmean, "deviation": statistics.stdev},
    **{"minimum": min, "median": statistics.median, "maximum": max},
}
"""Of a figure over the seeds, in CSV."""


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

    score: of any trial. Raises ImportError without Matplotlib.
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
