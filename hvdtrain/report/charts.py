"""Charts of rows, as SVG."""

from __future__ import annotations

import base64
import io
import math
import textwrap
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hvdtrain.report.rows import Row, Spread, count_of

if TYPE_CHECKING:  # importing Matplotlib takes half a second, so only drawing does it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH_IN = 5.2  # narrow, so that the text is legible on a phone
# Colors that are distinct for color-blind readers: Okabe and Ito, Color Universal Design, 2008.
COLORS = {"mxnet": "#0072B2", "torch": "#E69F00", "tensorflow": "#009E73"}
OTHER_COLOR = "#CC79A7"
# The parts of a step, in the order of StepShares.
SHARE_COLORS = {"forward and backward": "#0072B2", "communication": "#E69F00", "update": "#009E73", "loop": "#56B4E9"}
SERIES_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = "osD^vP"
LEAST_ACCURACY_SPAN = 0.02
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # an SVG in <img> cannot use the fonts of the page
    "text.parse_math": False,  # a dollar sign in a name is not math
}


class ChartKind(NamedTuple):
    """A kind of chart."""

    title: str
    about: str
    """What it shows, for the alternative text."""
    has: Callable[[Row], object]
    """Whether a row has something to show."""
    draw: Callable[[list[Row]], Figure]
    missing: str
    """Why it is omitted if no row has anything to show."""


class Chart(NamedTuple):
    """A chart on the page."""

    title: str
    alt: str
    uri: str
    """The SVG as a data: URI, so that its ids cannot collide with those of another chart."""
    width: int
    height: int
    """Natural size in CSS pixels."""


def draw(rows: list[Row]) -> tuple[list[Chart], list[str]]:
    """The charts, and the titles of those that are omitted, with the reason."""
    import matplotlib

    charts, omitted = [], []
    for kind in KINDS:
        chosen = [row for row in rows if kind.has(row)]
        if not chosen:
            omitted.append(f"{kind.title}: {kind.missing}.")
            continue
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": kind.title}), warnings.catch_warnings():
            # Names may have characters that the font lacks; they are drawn as boxes.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            charts.append(_chart(kind, kind.draw(chosen), chosen))
    return charts, omitted


def _chart(kind: ChartKind, figure: Figure, rows: list[Row]) -> Chart:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    uri = f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    names = "; ".join(row.label for row in rows)
    alt = f"{kind.about}, for {count_of(len(rows), 'row')}: {names}. The table has the figures."
    return Chart(kind.title, alt, uri, width, height)


def _lanes(rows: list[Row]) -> tuple[Figure, Axes]:
    """A figure with one horizontal lane per row, the first at the top."""
    from matplotlib.figure import Figure

    # No line break inside the size of a row.
    names = [row.label.replace(" × ", "\u00a0×\u00a0") for row in rows]
    labels = ["\n".join(textwrap.wrap(name, 30, max_lines=4, placeholder=" …")) for name in names]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + len(rows) * (0.16 + 0.15 * lines)), layout="constrained")
    axis = figure.subplots()
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    return figure, axis


def _color(row: Row) -> str:
    return COLORS.get(row.framework, OTHER_COLOR)


def _framework_legend(figure: Figure, rows: list[Row]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_color(row), label=row.framework) for row in {row.framework: row for row in rows}.values()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), frameon=False)


def _whiskers(axis: Axes, lane: int, value: Spread) -> None:
    if value.number > 1:
        ends = [[value.median - value.minimum], [value.maximum - value.median]]
        axis.errorbar([value.median], [lane], xerr=ends, color="black", capsize=3, linewidth=1)


def _draw_speed(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    for lane, row in enumerate(rows):
        assert row.images_per_s
        axis.barh(lane, row.images_per_s.median, 0.62, color=_color(row))
        _whiskers(axis, lane, row.images_per_s)
    axis.set_xlabel("images/s (median; whiskers: minimum to maximum)")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5)
    _framework_legend(figure, rows)
    return figure


def _draw_shares(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    shares = np.array([[part or 0.0 for part in row.shares] for row in rows if row.shares])
    left = np.zeros(len(rows))
    for (name, color), widths in zip(SHARE_COLORS.items(), shares.T, strict=True):
        bars = axis.barh(np.arange(len(rows)), widths, 0.62, left, color=color, label=name)
        texts = [f"{width:.0%}" if width >= 0.07 else "" for width in widths]
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if color == "#0072B2" else "black")
        left += widths
    axis.set_xlabel("share of a step's time")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _draw_accuracy(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    for lane, row in enumerate(rows):
        assert row.accuracy
        _whiskers(axis, lane, row.accuracy)
        axis.plot(row.accuracy.median, lane, "o", color=_color(row), markersize=7)
    axis.margins(x=0.08)
    low, high = axis.get_xlim()
    short = max(LEAST_ACCURACY_SPAN - (high - low), 0) / 2  # else chance looks like a difference
    axis.set_xlim(low - short, high + short)
    axis.set_xlabel("test accuracy, share of the images\n(median; whiskers: minimum to maximum;\nnot starting at 0)")
    axis.locator_params(axis="x", nbins=6)
    _framework_legend(figure, rows)
    return figure


def _draw_difference(rows: list[Row]) -> Figure:
    """Differences on a logarithmic axis; 0, which has no place on it, is written at the left edge."""
    figure, axis = _lanes(rows)
    values = [row.difference.largest or 0.0 for row in rows if row.difference]
    positive = [value for value in values if value > 0] or [1e-8]
    edge = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    axis.set_xscale("log")
    axis.set_xlim(edge, 10.0 ** (math.floor(math.log10(max(positive))) + 1))
    for lane, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value > 0:
            axis.plot([edge, value], [lane, lane], color=_color(row), linewidth=1.5)
            axis.plot(value, lane, "o", color=_color(row), markersize=7)
        else:
            axis.text(edge, lane, " 0, identical bit for bit", va="center", fontsize=8)
    axis.xaxis.set_major_formatter("{x:.0e}")
    axis.set_xlabel("largest difference of any parameter from a single process\n(no unit, logarithmic)")
    _framework_legend(figure, rows)
    return figure


def _draw_scaling(rows: list[Row]) -> Figure:
    """One panel per base, which defines the ideal line; one line per strategy and kind of scaling."""
    from matplotlib.figure import Figure

    panels: dict[str, dict[str, list[Row]]] = {}
    bases: dict[str, Row] = {}
    for row in rows:
        assert row.scaling
        base, run = row.scaling.base, row.run
        devices = f", {run.devices} devices per rank" if run.devices > 1 else ""
        series = f"{row.strategy}, {row.scaling.kind}{devices}" + (f", {row.note}" if row.note != base.note else "")
        panels.setdefault(base.label, {}).setdefault(series, []).append(row)
        bases[base.label] = base
    heights = [2.6 + 0.2 * len(lines) for lines in panels.values()]
    figure = Figure(figsize=(WIDTH_IN, sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (label, lines) in zip(axes, panels.items(), strict=True):
        _draw_panel(axis, bases[label], lines)
    return figure


def _draw_panel(axis: Axes, base: Row, lines: dict[str, list[Row]]) -> None:
    assert base.images_per_s
    one = base.images_per_s.median
    most = max(row.run.replicas for rows in lines.values() for row in rows)
    axis.plot([1, most], [one, most * one], ":", color="black", label="ideal: replicas times the base")
    for number, (name, rows) in enumerate(lines.items()):
        points = sorted((row.run.replicas, row.images_per_s.median) for row in rows if row.images_per_s)
        x, y = zip((1, one), *points, strict=True)
        color, marker = SERIES_COLORS[number % 6], MARKERS[number % 6]
        line = ("-", "--", "-.")[number % 3]  # so that lines on top of each other are all visible
        label = textwrap.shorten(name, 60, placeholder=" …")
        axis.plot(x, y, line, marker=marker, color=color, markersize=5, label=label)
    axis.set_title("\n".join(textwrap.wrap(f"base: {base.label}", 60)), fontsize=9, loc="left")
    axis.set(xlabel="replicas (ranks × devices)", ylabel="images/s", ylim=(0, None))
    axis.set_xticks(sorted({1, *(row.run.replicas for rows in lines.values() for row in rows)}))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.2), fontsize=8, frameon=False)


KINDS: tuple[ChartKind, ...] = (
    ChartKind(
        "Speed",
        "Bars: images per second, colored by framework, with whiskers from the minimum to the maximum of the runs",
        lambda row: row.images_per_s,
        _draw_speed,
        "no run measured its speed",
    ),
    ChartKind(
        "Shares of a step",
        "Stacked bars: the shares of a step's time for forward and backward, communication, update and loop",
        lambda row: row.shares,
        _draw_shares,
        "no run measured them (train --profile N does)",
    ),
    ChartKind(
        "Scaling",
        "Lines: images per second over the number of replicas, with the ideal line",
        lambda row: row.scaling and row.run.replicas > 1,
        _draw_scaling,
        "no row with several replicas has a comparable row with one replica",
    ),
    ChartKind(
        "Accuracy",
        "Points: test accuracy, colored by framework, with whiskers from the minimum to the maximum of the runs",
        lambda row: row.accuracy,
        _draw_accuracy,
        "no run measured it",
    ),
    ChartKind(
        "Difference from a single process",
        "Points on a logarithmic axis: the largest difference of any parameter from the run of a single process",
        lambda row: row.difference and row.difference.largest is not None,
        _draw_difference,
        "no run has a comparable run with strategy single and a checkpoint of its last step",
    ),
)
