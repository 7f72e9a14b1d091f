"""The charts of a report, as SVG, and those of lines: scaling and learning curves."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from hvdtrain.config.score import ACCURACY, LOSS
from hvdtrain.errors import MissingPackage
from hvdtrain.runs import plots
from hvdtrain.runs.history import Curve, History
from hvdtrain.runs.metrics import TRAIN_LOSS
from hvdtrain.runs.run import RecordedRun, unit_of
from hvdtrain.system.text import count_of, printable
from hvdtrain.views.report.lanes import (
    WIDTH_IN,
    draw_ranks,
    draw_score,
    draw_shares,
    draw_speed,
    ends,
    has_ranks,
    wrapped,
)
from hvdtrain.views.report.rows import ReportRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS = len(plots.COLORS) * len(plots.LINES)
"""Rows whose curves are drawn: as many as there are different lines."""
MAX_LINES = 60
"""Runs whose curves are drawn, of each row the first ones."""
MAX_POINTS, MAX_ALL_POINTS = 300, 12_000
"""Of a curve, and of all: the page stays small."""
MAX_PANELS = 8


class Chart(NamedTuple):
    title: str
    alt: str
    uri: str
    """The SVG as a data: URI, so that its ids cannot collide with those of another chart."""
    width: int
    height: int
    """Natural size in CSS pixels."""


class _ChartKind(NamedTuple):
    """A chart that a report has if any of its rows has what it shows."""

    title: str
    draw: Callable[[list[ReportRow]], Figure]
    """Its docstring says what it shows, for the alternative text."""
    has: Callable[[ReportRow], object]
    """Whether a row has it."""


def draw(rows: list[ReportRow]) -> tuple[list[Chart], list[str]]:
    """The charts, and the titles of those that are omitted, with the reason."""
    charts, omitted = [], []
    for kind in _kinds(rows):
        shown = [row for row in rows if kind.has(row)]
        if not shown:
            omitted.append(f"{kind.title}: no row has what it shows.")
            continue
        try:
            with plots.drawing(salt=kind.title):
                charts.append(_chart(kind, kind.draw(shown), shown))
        except MissingPackage as error:
            return [], [f"{error}."]
    return charts, omitted


def _kinds(rows: list[ReportRow]) -> list[_ChartKind]:
    """All charts; that of scores for each metric that is one."""
    scores = list(dict.fromkeys(row.scored_by for row in rows if row.scored_by)) or [ACCURACY]
    return [
        _ChartKind("Speed", draw_speed, lambda row: row.images_per_s),
        _ChartKind("Scaling", _draw_scaling, lambda row: row.scaling and row.run.replicas > 1),
        *map(_of_score, scores),
        _ChartKind("Learning curves", draw_curves, lambda row: any(_has_curve(run.history) for run in row.runs)),
        _ChartKind("Shares of a step", draw_shares, lambda row: row.shares),
        _ChartKind("Time of each rank", draw_ranks, has_ranks),
    ]


def _of_score(name: str) -> _ChartKind:
    shown = printable(name)
    title = "Test loss" if name == LOSS else shown[:1].upper() + shown[1:]
    return _ChartKind(title, draw_score, lambda row: row.score and row.scored_by == name)


def _chart(kind: _ChartKind, figure: Figure, rows: list[ReportRow]) -> Chart:
    uri = f"data:image/svg+xml;base64,{base64.b64encode(plots.encode(figure, 'svg')).decode()}"
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    names = "; ".join(row.label for row in rows)
    about = " ".join((kind.draw.__doc__ or "").split()).rstrip(".")
    alt = f"{about}, for {count_of(len(rows), 'row')}: {names}. The tables have the figures."
    return Chart(kind.title, alt, uri, width, height)


def _has_curve(history: History) -> bool:
    return bool(history.train_loss or history.evaluated_loss or history.metrics or history.logged)


def _curve(name: str, history: History) -> Curve | None:
    losses = {TRAIN_LOSS: history.train_loss, f"{history.part} {LOSS}": history.evaluated_loss}
    metric = history.metrics.get(name.removeprefix(f"{history.part} "))
    return losses.get(name) or metric or history.logged.get(name)


def _panels(runs: Iterable[RecordedRun]) -> list[str]:
    """The names of the figures that any of the runs recorded: losses, then metrics, then those that scripts logged."""
    histories = [run.history for run in runs]
    losses = dict.fromkeys(f"{history.part} {LOSS}" for history in histories)
    metrics = dict.fromkeys(f"{history.part} {name}" for history in histories for name in history.metrics)
    logged = dict.fromkeys(name for history in histories for name in history.logged)
    names = [TRAIN_LOSS, *losses, *metrics, *logged]
    return [name for name in names if any(_curve(name, history) for history in histories)][:MAX_PANELS]


def draw_curves(rows: list[ReportRow]) -> Figure:
    """Lines: train loss, test loss and metrics over epochs, a line for each run in the color of its row."""
    from matplotlib.lines import Line2D

    handles, lines = [], []
    for number, row in enumerate(rows[:MAX_ROWS]):
        color, style = plots.COLORS[number % len(plots.COLORS)], plots.LINES[number // len(plots.COLORS)]
        lines += [(run, color, style) for run in row.runs[: MAX_LINES // len(rows[:MAX_ROWS])]]
        handles.append(Line2D([], [], color=color, linestyle=style, linewidth=1.3, label=wrapped(row.label, 50)))
    panels = _panels(run for run, _, _ in lines)
    legend = sum(str(handle.get_label()).count("\n") + 1 for handle in handles)
    figure = plots.new_figure(WIDTH_IN, 1.9 * len(panels) + 0.19 * legend + 0.5)
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axis, name in zip(axes, panels, strict=True):
        is_accuracy = name in (f"validation {ACCURACY}", f"test {ACCURACY}")
        _draw_panel(axis, lines, name)
        if is_accuracy:
            axis.set_ylim(*plots.widened_limits(axis.get_ylim(), axis.dataLim.intervaly))
        axis.set_ylabel(printable(name))
    axes[-1].set_xlabel("epoch" + (f" ({MAX_ROWS} of {len(rows)} rows)" if len(rows) > MAX_ROWS else ""))
    figure.legend(handles=handles, loc="outside lower left", fontsize=8, frameon=False)
    return figure


def _draw_panel(axis: Axes, lines: list[tuple[RecordedRun, str, str]], name: str) -> None:
    most = max(min(MAX_POINTS, MAX_ALL_POINTS // len(lines)), 2)
    for run, color, style in lines:
        curve = _curve(name, run.history)
        if not curve:
            continue
        x, _, y = curve.thinned(most)
        alpha = 0.9 if len(lines) < 10 else 0.5
        marker = "o" if len(x) < 2 else ""
        axis.plot(x, y, style, color=color, linewidth=1.3, alpha=alpha, marker=marker, markersize=4)


def _draw_scaling(rows: list[ReportRow]) -> Figure:
    """Lines: rows per second over the number of replicas, with whiskers and the ideal line, in a panel per base."""
    panels: dict[str, dict[str, list[ReportRow]]] = {}
    bases: dict[str, ReportRow] = {}
    for row in rows:
        assert row.scaling
        base, run = row.scaling.base, row.run
        devices = f", {run.config.devices} devices per rank" if run.config.devices > 1 else ""
        series = f"{row.strategy}, {row.scaling.kind}{devices}" + (f", {row.note}" if row.note != base.note else "")
        panels.setdefault(base.label, {}).setdefault(series, []).append(row)
        bases[base.label] = base
    heights = [2.6 + 0.2 * len(lines) for lines in panels.values()]
    figure = plots.new_figure(WIDTH_IN, sum(heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (label, lines) in zip(axes, panels.items(), strict=True):
        _draw_base(axis, bases[label], lines)
    return figure


def _draw_base(axis: Axes, base: ReportRow, lines: dict[str, list[ReportRow]]) -> None:
    """Whiskers from the minimum to the maximum of repetitions, side by side where lines have the same replicas."""
    assert base.images_per_s
    single = base.images_per_s.median
    most = max(row.run.replicas for rows in lines.values() for row in rows)
    axis.plot([1, most], [single, most * single], ":", color="black", label="ideal: replicas times the base")
    for number, (name, rows) in enumerate(lines.items()):
        points = sorted((row.run.replicas, row.images_per_s) for row in rows if row.images_per_s)
        x, spreads = zip((1, base.images_per_s), *points, strict=True)
        beside = 0.012 * most * (number - (len(lines) - 1) / 2)
        axis.errorbar(
            *([place + beside * (place > 1) for place in x], [value.median for value in spreads]),
            yerr=ends(spreads),
            fmt=plots.LINES[(number + number // 6) % len(plots.LINES)],
            marker=plots.MARKERS[number % 6],
            color=plots.COLORS[number % 6],
            markersize=5,
            elinewidth=1,
            capsize=2,
            label=textwrap.shorten(name, 46, placeholder=" …"),
        )
    axis.set_title("\n".join(textwrap.wrap(f"base: {base.label}", 46)), fontsize=9, loc="left")
    axis.set(xlabel="replicas (whiskers: minimum to maximum)", ylabel=f"{unit_of([base.run])}/s", ylim=(0, None))
    axis.set_xticks(sorted({1, *(row.run.replicas for rows in lines.values() for row in rows)}))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.3), fontsize=8, frameon=False)
