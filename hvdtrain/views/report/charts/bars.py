"""Charts of bars with a horizontal lane for each row or rank: speed, score, and the time of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvdtrain.config.score import ACCURACY
from hvdtrain.runs import plots
from hvdtrain.system.text import printable
from hvdtrain.views.report.charts import WIDTH_IN, color_of, framework_legend, wrapped
from hvdtrain.views.report.rows import ReportRow, Spread, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _lanes(rows: Sequence[ReportRow]) -> tuple[Figure, Axes]:
    """A figure with one horizontal lane for each row, the first at the top."""
    labels = [wrapped(row.label, 26, 4) for row in rows]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = plots.new_figure(WIDTH_IN, 1.1 + len(labels) * (0.16 + 0.15 * lines))
    axis = figure.subplots()
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    return figure, axis


def _whiskers(axis: Axes, lane: int, value: Spread) -> None:
    if value.number > 1:
        ends = [[value.median - value.minimum], [value.maximum - value.median]]
        axis.errorbar([value.median], [lane], xerr=ends, color="black", capsize=3, linewidth=1)


def draw_speed(rows: list[ReportRow]) -> Figure:
    figure, axis = _lanes(rows)
    for lane, row in enumerate(rows):
        assert row.images_per_s
        axis.barh(lane, row.images_per_s.median, 0.62, color=color_of(row))
        _whiskers(axis, lane, row.images_per_s)
    figure.supxlabel(f"{unit_of(rows)}/s (median; whiskers: minimum to maximum)", fontsize=9)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5)
    framework_legend(figure, rows)
    return figure


def draw_score(rows: list[ReportRow]) -> Figure:
    """Each median; of accuracies with the interval that chance gives, so that rows which it explains overlap."""
    figure, axis = _lanes(rows)
    for lane, row in enumerate(rows):
        assert row.score
        if row.chance:
            low, high = row.chance
            axis.barh(lane, high - low, 0.5, low, color=color_of(row), alpha=0.35)
        _whiskers(axis, lane, row.score)
        axis.plot(row.score.median, lane, "o", color=color_of(row), markersize=5, zorder=3)
    axis.use_sticky_edges = False
    axis.margins(x=0.08)
    name = rows[0].scored_by
    if name == ACCURACY and not all(row.chance for row in rows):  # else chance looks like a difference
        axis.set_xlim(*plots.widened_limits(axis.get_xlim(), axis.dataLim.intervalx))
    about = ["median"]
    if name == ACCURACY:
        has_rows = any(row.chance for row in rows)
        about.append("bars: 95 % interval of chance" if has_rows else "number of test rows not recorded")
    parts = " or ".join(sorted({row.part for row in rows}))
    text = f"{parts} {printable(name)} ({'; '.join(about)};\nwhiskers: minimum to maximum; not starting at 0)"
    figure.supxlabel(text, fontsize=9)
    axis.locator_params(axis="x", nbins=4)
    framework_legend(figure, rows)
    return figure
