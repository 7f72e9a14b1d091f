"""What a sweep shows: its table for the terminal, as Markdown and as CSV, and a plot of what its options do.

The plot has the test accuracy over the values of each option that the sweep varies, with what chance does to it.
"""

from __future__ import annotations

import shlex
import statistics
import textwrap
from typing import TYPE_CHECKING, Any

from hvdtrain.measure.sweep.outcomes import NONE, Average, Combination
from hvdtrain.runs import plots
from hvdtrain.system.text import printable
from hvdtrain.views.report.charts import WIDTH_IN
from hvdtrain.views.report.rows import wilson
from hvdtrain.views.table import Column, Section, Table, escape, text_column, to_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = {"test accuracy": ".4f", "test loss": ".4f", "images/s": ",.0f"}
"""The figures, and the format of each."""
COLUMNS = ("seeds", *FIGURES, "hash of weights")
DEFINITION = "Mean ± sample standard deviation over the seeds; best test accuracy first."

PANEL_IN = 2.8
MAX_LINES = len(plots.MARKERS)
"""With more combinations of the other options, a panel shows their mean."""
LABEL_CHARACTERS = 18
BESIDE = 0.04
"""Distance of two lines, as a share of that of two values."""
SEED = "seed"

Points = list[tuple[str, dict[str, str], float]]
"""Of each trial with a result: its value of the panel's option, its values of the other options, its accuracy."""


def terminal_table(combinations: list[Combination]) -> str:
    """The table for the terminal."""
    columns = [text_column("options"), *(Column(name, priority=order) for order, name in enumerate(COLUMNS))]
    return Table(columns, [Section([[row.label, *_figures(row)] for row in combinations])]).terminal()


def markdown_page(
    combinations: list[Combination], command: list[str], failures: list[str], sentences: list[str]
) -> str:
    """A page with the command, the table, what is to be said of it, and the trials that failed, if any did."""
    columns = [*(text_column(name) for name in combinations[0].values), *map(Column, COLUMNS)]
    rows = [[*map(printable, row.values.values()), *_figures(row)] for row in combinations]
    table = Table(columns, [Section(rows)]).markdown()
    failed = "".join(f"- {escape(printable(failure))}\n" for failure in failures)
    said = [f"{escape(sentence)}\n" for sentence in sentences]
    parts = [f"# Sweep\n\n    hvdtrain {printable(shlex.join(command))}\n", f"{DEFINITION}\n", table]
    return "\n".join([*parts, *said, *([f"## Failed trials\n\n{failed}"] if failed else [])])


def csv_page(combinations: list[Combination]) -> str:
    """One line for each combination, with numbers in full precision."""
    return to_csv([_record(row) for row in combinations])


def _figures(combination: Combination) -> list[str]:
    averages = (combination.accuracy, combination.loss, combination.images_per_s)
    texts = [value.text(form) if value else NONE for value, form in zip(averages, FIGURES.values(), strict=True)]
    hashes = combination.hashes
    return [combination.seeds, *texts, hashes[0] if len(hashes) == 1 else f"{len(hashes)} hashes" if hashes else NONE]


def _record(combination: Combination) -> dict[str, Any]:
    record: dict[str, Any] = {**{name: printable(text) for name, text in combination.values.items()}}
    record |= {"seeds": len(combination.outcomes), "seeds_planned": combination.trials}
    for name in ("accuracy", "loss", "images_per_s"):
        average = getattr(combination, name)
        for part in Average._fields:
            record[f"{name}_{part}"] = getattr(average, part) if average else None
    return {**record, "parameters": " ".join(combination.hashes)}


def draw(combinations: list[Combination]) -> bytes | None:
    """The plot as PNG, with a panel for each option that has several values; None if no trial has an accuracy."""
    panels = {name: points for name in _varied(combinations) if (points := _points(combinations, name))}
    if not panels:
        return None
    with plots.drawing():
        figure = plots.new_figure(WIDTH_IN, PANEL_IN * len(panels))
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        rows = _test_rows(combinations)
        for axis, (name, points) in zip(axes, panels.items(), strict=True):
            _draw_panel(axis, name, points, rows)
        if rows:
            figure.supxlabel("whiskers: 95 % interval that chance in the test rows gives", fontsize=8)
        return plots.encode(figure, "png")


def _varied(combinations: list[Combination]) -> list[str]:
    """The options that have several values; the seed where none has."""
    names = combinations[0].values if combinations else {}
    return [name for name in names if len({row.values[name] for row in combinations}) > 1] or [SEED]


def _points(combinations: list[Combination], name: str) -> Points:
    others = [other for other in _varied(combinations) if other != name]
    return [
        (row.values.get(name, str(outcome.seed)), {other: row.values[other] for other in others}, outcome.accuracy)
        for row in combinations
        for outcome in row.outcomes
        if outcome.accuracy is not None
    ]


def _test_rows(combinations: list[Combination]) -> int | None:
    """The number that all trials were tested with; None if it is not known of one."""
    numbers = [outcome.test_rows for row in combinations for outcome in row.outcomes if outcome.accuracy is not None]
    known = [number for number in numbers if number is not None]
    return min(known) if known and len(known) == len(numbers) else None


def _draw_panel(axis: Axes, name: str, points: Points, test_rows: int | None) -> None:
    """A dot for each trial, and lines through the means over seeds, with the interval that chance gives."""
    values = sorted({value for value, _, _ in points}, key=_order)
    lines: dict[str, dict[str, list[float]]] = {}
    for value, others, accuracy in points:
        label = ", ".join(f"{other} {text}" for other, text in others.items())
        lines.setdefault(label, {}).setdefault(value, []).append(accuracy)
    if len(lines) > MAX_LINES:
        merged: dict[str, list[float]] = {}
        for value, _, accuracy in points:
            merged.setdefault(value, []).append(accuracy)
        lines = {"mean of all trials": merged}
    for number, label in enumerate(sorted(lines)):
        color, means = plots.COLORS[number], {}
        beside = BESIDE * (number - (len(lines) - 1) / 2)  # so that whiskers of several lines are all visible
        for column, value in enumerate(values):
            place = column + beside
            if measured := lines[label].get(value):
                means[place] = statistics.fmean(measured)
                axis.plot([place] * len(measured), measured, "o", color=color, alpha=0.4, markersize=4)
                if chance := wilson(means[place], test_rows):
                    ends = [[means[place] - chance.low], [chance.high - means[place]]]
                    axis.errorbar([place], [means[place]], yerr=ends, color=color, capsize=3, linewidth=1)
        shown = textwrap.shorten(printable(label), 60, placeholder=" …")
        axis.plot(list(means), list(means.values()), "-", marker=plots.MARKERS[number], color=color, label=shown)
    axis.set_xticks(range(len(values)), [textwrap.shorten(printable(value), LABEL_CHARACTERS) for value in values])
    axis.margins(x=0.1)
    axis.set(xlabel=name, ylabel="test accuracy")
    if any(lines):
        axis.legend(fontsize=8, frameon=False)


def _order(text: str) -> tuple[bool, float, str]:
    """Numbers by size, then other texts."""
    try:
        return (False, float(text), text)
    except ValueError:
        return (True, 0.0, text)
