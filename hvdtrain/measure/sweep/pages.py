"""What a sweep shows: its table for the terminal, as Markdown and as CSV, and a plot of what its options do.

The plot has the score over the values of each option that the sweep varies, with what chance does to it.
"""

from __future__ import annotations

import shlex
import statistics
import textwrap
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hvdtrain.config.score import ACCURACY, LOSS, Score
from hvdtrain.measure.sweep.outcomes import NONE, Average, Combination
from hvdtrain.runs import plots
from hvdtrain.system.text import printable
from hvdtrain.views.report.charts import WIDTH_IN
from hvdtrain.views.report.rows import score_form, wilson
from hvdtrain.views.table import Column, Section, Table, escape, text_column, to_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_IN = 2.8
MAX_LINES = len(plots.MARKERS)
"""With more combinations of the other options, a panel shows their median."""
MAX_PLACES = 6
"""More values that are all numbers, as a search draws them, have an axis of numbers instead of a place for each."""
WIDE = 30.0
"""Numbers that differ by this factor have a logarithmic axis."""
ALL = "median of all trials"
LABEL_CHARACTERS = 18
BESIDE = 0.04
"""Distance of two lines, as a share of that of two values."""
SEED = "seed"

Points = list[tuple[str, dict[str, str], float]]
"""Of each trial with a result: its value of the panel's option, its values of the other options, its score."""


class _Figure(NamedTuple):
    """A column of figures."""

    name: str
    of: Callable[[Combination], Average | None]
    in_csv: str
    """Where its names begin in CSV."""

    def text(self, combination: Combination) -> str:
        value = self.of(combination)
        return value.text(",.0f" if self.name.endswith("/s") else score_form(value.median)) if value else NONE


def score_of(combinations: list[Combination]) -> Score | None:
    """That of the first trial that has one, by whose name trials are compared."""
    scores = [outcome.score for row in combinations for outcome in row.outcomes]
    pruned = [score for row in combinations for score in row.pruned]
    return next(filter(None, [*scores, *pruned]), None)


def definition(combinations: list[Combination]) -> str:
    """What the figures of the table are, and in which order its rows."""
    score = score_of(combinations)
    title, order = (
        (printable(score.title), "lowest" if score.is_least_best else "highest") if score else ("score", "best")
    )
    pruned = sum(bool(row.pruned) for row in combinations)
    ended = f" {pruned} of {len(combinations)} combinations ended early (pruned)." if pruned else ""
    return f"Median over the seeds, with minimum and maximum; {order} {title} first.{ended}"


def _shown_figures(combinations: list[Combination]) -> list[_Figure]:
    """The figures: the score first, then other metrics, the loss and the speed."""
    outcomes = [outcome for row in combinations for outcome in row.outcomes]
    score, units = score_of(combinations), {outcome.unit for outcome in outcomes}
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.metrics))
    part = next((outcome.part for outcome in outcomes), "test")
    loss = _Figure(f"{part} {LOSS}", lambda row: row.loss, LOSS)
    metrics = [_Figure(f"{part} {printable(name)}", partial(_metric, name), printable(name)) for name in names]
    tested = list(dict.fromkeys(name for outcome in outcomes for name in outcome.test))
    tests = [_Figure(f"test {printable(name)}", partial(_test, name), f"test_{printable(name)}") for name in tested]
    figures = [loss, *metrics, *tests] if score and score.name == LOSS else [*metrics, *tests, loss]
    figures.sort(key=lambda figure: score is None or figure.name != printable(score.title))
    unit = units.pop() if len(units) == 1 else "rows"
    return [*figures, _Figure(f"{unit}/s", lambda row: row.images_per_s, "images_per_s")]


def _metric(name: str, combination: Combination) -> Average | None:
    return combination.metric(name)


def _test(name: str, combination: Combination) -> Average | None:
    return combination.test_metric(name)


def _columns(figures: list[_Figure]) -> tuple[str, ...]:
    return ("seeds", *(figure.name for figure in figures), "hash of weights")


def terminal_table(combinations: list[Combination]) -> str:
    """The table for the terminal."""
    figures = _shown_figures(combinations)
    columns = [text_column("options"), *(Column(name, priority=at) for at, name in enumerate(_columns(figures)))]
    return Table(columns, [Section([[row.label, *_figures(row, figures)] for row in combinations])]).terminal()


def markdown_page(
    combinations: list[Combination], command: list[str], failures: list[str], sentences: list[str]
) -> str:
    """A page with the command, the table, what is to be said of it, and the trials that failed, if any did."""
    figures = _shown_figures(combinations)
    columns = [*(text_column(name) for name in combinations[0].values), *map(Column, _columns(figures))]
    rows = [[*map(printable, row.values.values()), *_figures(row, figures)] for row in combinations]
    table = Table(columns, [Section(rows)]).markdown()
    failed = "".join(f"- {escape(printable(failure))}\n" for failure in failures)
    said = [f"{escape(sentence)}\n" for sentence in sentences]
    parts = [
        f"# Sweep\n\n    hvdtrain {printable(shlex.join(command))}\n",
        f"{escape(definition(combinations))}\n",
        table,
    ]
    return "\n".join([*parts, *said, *([f"## Failed trials\n\n{failed}"] if failed else [])])


def csv_page(combinations: list[Combination]) -> str:
    """One line for each combination, with numbers in full precision."""
    figures = _shown_figures(combinations)
    return to_csv([_record(row, figures) for row in combinations])


def _figures(combination: Combination, figures: list[_Figure]) -> list[str]:
    hashes = combination.hashes
    texts = [figure.text(combination) for figure in figures]
    return [combination.seeds, *texts, hashes[0] if len(hashes) == 1 else f"{len(hashes)} hashes" if hashes else NONE]


def _record(combination: Combination, figures: list[_Figure]) -> dict[str, Any]:
    record: dict[str, Any] = {**{name: printable(text) for name, text in combination.values.items()}}
    record |= {"seeds": len(combination.outcomes), "seeds_planned": combination.trials}
    record |= {"pruned": len(combination.pruned)}
    for figure in figures:
        average = figure.of(combination)
        for part in Average._fields:
            record[f"{figure.in_csv}_{part}"] = getattr(average, part) if average else None
    return {**record, "parameters": " ".join(combination.hashes)}


def draw(combinations: list[Combination]) -> bytes | None:
    """The plot as PNG, with a panel for each option that has several values; None if no trial has a score."""
    panels = {name: points for name in _varied(combinations) if (points := _points(combinations, name))}
    score = score_of(combinations)
    if not panels or not score:
        return None
    with plots.drawing():
        figure = plots.new_figure(WIDTH_IN, PANEL_IN * len(panels))
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        rows = _test_rows(combinations) if score.name == ACCURACY else None
        values = {name: _values(combinations, name, points) for name, points in panels.items()}
        is_search = any(map(_are_drawn, values.values()))
        for axis, (name, points) in zip(axes, panels.items(), strict=True):
            if _are_drawn(values[name]):
                places = _draw_numbers(axis, name, points, values[name])
            else:
                places = _draw_panel(axis, name, points, values[name], rows, is_search)
            pruned = [(places[row.values[name]], row.pruned) for row in combinations if row.pruned and name != SEED]
            _draw_pruned(axis, pruned)
            axis.set_ylabel(printable(score.title))
            if score.name == ACCURACY:
                axis.set_ylim(*plots.widened_limits(axis.get_ylim(), axis.dataLim.intervaly))
        about = "whiskers: minimum to maximum of the trials at a place" + "\nbars: 95 % interval of chance" * bool(rows)
        about += "\ncrosses: trials that ended early, at their last score" * any(row.pruned for row in combinations)
        figure.supxlabel(about, fontsize=8)
        return plots.encode(figure, "png")


def _varied(combinations: list[Combination]) -> list[str]:
    """The options that have several values; the seed where none has."""
    names = combinations[0].values if combinations else {}
    return [name for name in names if len({row.values[name] for row in combinations}) > 1] or [SEED]


def _points(combinations: list[Combination], name: str) -> Points:
    others = [other for other in _varied(combinations) if other != name]
    return [
        (row.values.get(name, str(outcome.seed)), {other: row.values[other] for other in others}, outcome.score.value)
        for row in combinations
        for outcome in row.outcomes
        if outcome.score
    ]


def _test_rows(combinations: list[Combination]) -> int | None:
    """The number that all trials were tested with; None if it is not known of one."""
    numbers = [outcome.test_rows for row in combinations for outcome in row.outcomes if outcome.score]
    known = [number for number in numbers if number is not None]
    return min(known) if known and len(known) == len(numbers) else None


def _values(combinations: list[Combination], name: str, points: Points) -> list[str]:
    """The values of a panel's option, also those of trials that ended early."""
    pruned = [row.values[name] for row in combinations if row.pruned and name in row.values]
    return sorted({*(value for value, _, _ in points), *pruned}, key=_order)


def _are_drawn(values: list[str]) -> bool:
    """Whether a panel has an axis of numbers."""
    return len(values) > MAX_PLACES and not any(_order(value)[0] for value in values)


def _draw_numbers(axis: Axes, name: str, points: Points, values: list[str]) -> dict[str, float]:
    """A dot for each combination at its number; returns the places of values."""
    places = {value: float(value) for value in values}
    measured: dict[tuple[str, ...], list[float]] = {}
    for value, others, score in points:
        measured.setdefault((value, *others.values()), []).append(score)
    for (value, *_), scores in measured.items():
        _draw_spread(axis, places[value], scores, plots.COLORS[0], None)
    least, greatest = min(places.values()), max(places.values())
    if least > 0 and greatest / least >= WIDE:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    axis.set_xlabel(name)
    return places


def _draw_pruned(axis: Axes, pruned: list[tuple[float, list[Score | None]]]) -> None:
    """Crosses for trials that ended early; the axis stays as it is for the others."""
    limits = axis.get_ylim()
    for place, scores in pruned:
        values = [score.value for score in scores if score]
        axis.plot([place] * len(values), values, "x", color="gray", markersize=5)
    axis.set_ylim(limits)


def _draw_panel(
    axis: Axes, name: str, points: Points, values: list[str], test_rows: int | None, merges: bool = False
) -> dict[str, float]:
    """A dot for each trial, and lines through the medians over seeds, with what the seeds and chance give.

    merges: whether the other options have no line of their own. Returns the places of values.
    """
    lines: dict[str, dict[str, list[float]]] = {}
    for value, others, score in points:
        label = ", ".join(f"{other} {text}" for other, text in others.items())
        lines.setdefault(label, {}).setdefault(value, []).append(score)
    if merges or len(lines) > MAX_LINES:
        merged: dict[str, list[float]] = {}
        for value, _, score in points:
            merged.setdefault(value, []).append(score)
        lines = {ALL: merged}
    for number, label in enumerate(sorted(lines)):
        color, medians = plots.COLORS[number], {}
        beside = BESIDE * (number - (len(lines) - 1) / 2)  # so that whiskers of several lines are all visible
        for column, value in enumerate(values):
            place = column + beside
            if measured := lines[label].get(value):
                medians[place] = statistics.median(measured)
                _draw_spread(axis, place, measured, color, test_rows)
        shown = textwrap.shorten(printable(label), 60, placeholder=" …")
        axis.plot(list(medians), list(medians.values()), "-", marker=plots.MARKERS[number], color=color, label=shown)
    axis.set_xticks(range(len(values)), [textwrap.shorten(printable(value), LABEL_CHARACTERS) for value in values])
    axis.margins(x=0.1)
    axis.set_xlabel(name)
    if any(lines):
        axis.legend(fontsize=8, frameon=False)
    return {value: float(place) for place, value in enumerate(values)}


def _draw_spread(axis: Axes, place: float, measured: list[float], color: str, test_rows: int | None) -> None:
    """The scores of the seeds, whiskers from the least to the greatest, and a bar for chance around their median."""
    median = statistics.median(measured)
    axis.plot([place] * len(measured), measured, "o", color=color, alpha=0.4, markersize=4)
    if len(measured) > 1:
        ends = [[median - min(measured)], [max(measured) - median]]
        axis.errorbar([place], [median], yerr=ends, color=color, capsize=3, linewidth=1)
    if chance := wilson(median, test_rows):
        axis.vlines([place], chance.low, chance.high, color=color, alpha=0.2, linewidth=8)


def _order(text: str) -> tuple[bool, float, str]:
    """Numbers by size, then other texts."""
    try:
        return (False, float(text), text)
    except ValueError:
        return (True, 0.0, text)
