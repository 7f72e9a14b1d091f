"""Charts with a horizontal lane for each row: speed, parts of a step, accuracy, difference of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvdtrain.runs.step_times import StepTime
from hvdtrain.views.report.charts.style import WIDTH_IN, color_of, framework_legend, wrapped
from hvdtrain.views.report.rows import Row, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPUTING, COMMUNICATING, WAITING = "computing", "communicating and waiting for ranks", "waiting for rows"
TOGETHER = "computing and communicating"
"""Where the strategy does not tell them apart."""
STEP_COLORS = {COMPUTING: "#0072B2", TOGETHER: "#CC79A7", COMMUNICATING: "#E69F00", WAITING: "#009E73"}
LEAST_ACCURACY_SPAN = 0.02
"""Of the axis, where the interval that chance gives is not known."""


def lanes(names: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one horizontal lane for each name, the first at the top."""
    from matplotlib.figure import Figure

    labels = [wrapped(name, 26, 4) for name in names]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + len(labels) * (0.16 + 0.15 * lines)), layout="constrained")
    axis = figure.subplots()
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    return figure, axis


def row_lanes(rows: Sequence[Row]) -> tuple[Figure, Axes]:
    """A figure with a lane for each row."""
    return lanes([row.label for row in rows])


def percent(value: float, _: object = None) -> str:
    """For the ticks of an axis."""
    return f"{value:.0%}"


def step_parts(times: Sequence[StepTime]) -> dict[str, tuple[str, list[float]]]:
    """Color and shares of each part of the time of steps that any lane has, by name; for `stack`."""
    totals = [time.total or 1.0 for time in times]
    values = {
        COMPUTING: [time.compute * (time.communicate is not None) for time in times],
        TOGETHER: [time.compute * (time.communicate is None) for time in times],
        COMMUNICATING: [time.communicate or 0.0 for time in times],
        WAITING: [time.data for time in times],
    }
    return {
        name: (STEP_COLORS[name], [value / total for value, total in zip(parts, totals, strict=True)])
        for name, parts in values.items()
        if any(parts)
    }


def stack(axis: Axes, parts: Mapping[str, tuple[str, Sequence[float]]], lane: Sequence[float]) -> None:
    """Stacked bars, with their shares where they have room. parts: by name, the color and a share for each lane."""
    left = np.zeros(len(lane))
    for name, (color, widths) in parts.items():
        bars = axis.barh(lane, widths, 0.62, left, color=color, label=name)
        texts = [percent(width) if width >= 0.1 else "" for width in widths]
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if color == "#0072B2" else "black")
        left += np.asarray(widths)
    axis.xaxis.set_major_formatter(percent)


def _whiskers(axis: Axes, lane: int, value: Spread) -> None:
    if value.number > 1:
        ends = [[value.median - value.minimum], [value.maximum - value.median]]
        axis.errorbar([value.median], [lane], xerr=ends, color="black", capsize=3, linewidth=1)


def draw_speed(rows: list[Row]) -> Figure:
    figure, axis = row_lanes(rows)
    for lane, row in enumerate(rows):
        assert row.images_per_s
        axis.barh(lane, row.images_per_s.median, 0.62, color=color_of(row))
        _whiskers(axis, lane, row.images_per_s)
    figure.supxlabel("images/s (median; whiskers: minimum to maximum)", fontsize=9)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5)
    framework_legend(figure, rows)
    return figure


def draw_shares(rows: list[Row]) -> Figure:
    figure, axis = row_lanes(rows)
    stack(axis, step_parts([row.shares for row in rows if row.shares]), range(len(rows)))
    figure.supxlabel("share of a step's time", fontsize=9)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def draw_accuracy(rows: list[Row]) -> Figure:
    """Each median with the interval that chance gives, so that rows which it explains overlap."""
    figure, axis = row_lanes(rows)
    for lane, row in enumerate(rows):
        assert row.accuracy
        if row.chance:
            low, high = row.chance
            axis.barh(lane, high - low, 0.5, low, color=color_of(row), alpha=0.35)
        _whiskers(axis, lane, row.accuracy)
        axis.plot(row.accuracy.median, lane, "o", color=color_of(row), markersize=5, zorder=3)
    axis.use_sticky_edges = False
    axis.margins(x=0.08)
    low, high = axis.get_xlim()
    known = all(row.chance for row in rows)
    short = 0.0 if known else max(LEAST_ACCURACY_SPAN - (high - low), 0) / 2  # else chance looks like a difference
    axis.set_xlim(low - short, high + short)
    about = "bars: 95 % interval of chance" if any(row.chance for row in rows) else "number of test rows not recorded"
    text = f"test accuracy (median; {about};\nwhiskers: minimum to maximum; not starting at 0)"
    figure.supxlabel(text, fontsize=9)
    axis.locator_params(axis="x", nbins=6)
    framework_legend(figure, rows)
    return figure


def draw_difference(rows: list[Row]) -> Figure:
    """Differences on a logarithmic axis; 0, which has no place on it, is written at the left edge."""
    figure, axis = row_lanes(rows)
    values = [row.difference.largest or 0.0 for row in rows if row.difference]
    positive = [value for value in values if value > 0] or [1e-8]
    edge = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    axis.set_xscale("log")
    axis.set_xlim(edge, 10.0 ** (math.floor(math.log10(max(positive))) + 1))
    for lane, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value > 0:
            axis.plot([edge, value], [lane, lane], color=color_of(row), linewidth=1.5)
            axis.plot(value, lane, "o", color=color_of(row), markersize=7, clip_on=False)
        else:
            axis.text(edge, lane, " 0, identical bit for bit", va="center", fontsize=8)
    axis.xaxis.set_major_formatter("{x:.0e}")
    text = "largest difference of any parameter from a single process\n(no unit, logarithmic)"
    figure.supxlabel(text, fontsize=9)
    framework_legend(figure, rows)
    return figure
