"""Charts of rows, drawn as SVG."""

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

if TYPE_CHECKING:  # Matplotlib takes half a second to import: only a report that is drawn waits for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Charts. Narrow, so that their text can be read on a phone; colours by Okabe and Ito (Color Universal Design, 2008).

WIDTH_IN = 5.2
COLOURS = {"mxnet": "#0072B2", "torch": "#E69F00", "tensorflow": "#009E73"}
OTHER_COLOUR = "#CC79A7"
SHARE_COLOURS = {"compute": "#0072B2", "communicate": "#E69F00", "data": "#56B4E9"}
SERIES_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = "osD^vP"
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # as an image the drawing sees no font of the page
    "text.parse_math": False,  # a dollar in a name is a dollar
}


class Kind(NamedTuple):
    """A kind of chart."""

    title: str
    about: str
    """What it shows, for who cannot see it."""
    has: Callable[[Row], object]
    """Whether a row has something to show."""
    draw: Callable[[list[Row]], Figure]
    missing: str
    """Why it is left out, where no row has."""


class Chart(NamedTuple):
    """A chart on the page."""

    title: str
    alt: str
    uri: str
    """The drawing itself, an SVG as data: URI, in which its ids cannot meet those of another."""
    width: int
    height: int
    """Natural size in CSS pixels."""


def draw(rows: list[Row]) -> tuple[list[Chart], list[str]]:
    """The charts, and which ones are left out and why."""
    import matplotlib

    charts, left_out = [], []
    for kind in KINDS:
        chosen = [row for row in rows if kind.has(row)]
        if not chosen:
            left_out.append(f"{kind.title}: {kind.missing}.")
            continue
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": kind.title}), warnings.catch_warnings():
            # Names may hold characters that the font lacks: a box stands for them.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            charts.append(_chart(kind, kind.draw(chosen), chosen))
    return charts, left_out


def _chart(kind: Kind, figure: Figure, rows: list[Row]) -> Chart:
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
    """A figure with a horizontal lane a row, the first on top."""
    from matplotlib.figure import Figure

    # The size of a row stays on one line.
    names = [row.label.replace(" × ", "\u00a0×\u00a0") for row in rows]
    labels = ["\n".join(textwrap.wrap(name, 30, max_lines=4, placeholder=" …")) for name in names]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + len(rows) * (0.16 + 0.15 * lines)), layout="constrained")
    axis = figure.subplots()
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    return figure, axis


def _colour(row: Row) -> str:
    return COLOURS.get(row.framework, OTHER_COLOUR)


def _framework_legend(figure: Figure, rows: list[Row]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_colour(row), label=row.framework) for row in {row.framework: row for row in rows}.values()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), frameon=False)


def _whiskers(axis: Axes, place: int, value: Spread) -> None:
    if value.number > 1:
        ends = [[value.median - value.least], [value.greatest - value.median]]
        axis.errorbar([value.median], [place], xerr=ends, color="black", capsize=3, linewidth=1)


def _draw_speed(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    for place, row in enumerate(rows):
        assert row.images_per_s
        axis.barh(place, row.images_per_s.median, 0.62, color=_colour(row))
        _whiskers(axis, place, row.images_per_s)
    axis.set_xlabel("images/s (median; whiskers: least to greatest)")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5)
    _framework_legend(figure, rows)
    return figure


def _draw_shares(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    shares = np.array([row.shares for row in rows])
    left = np.zeros(len(rows))
    for (name, colour), widths in zip(SHARE_COLOURS.items(), shares.T, strict=True):
        bars = axis.barh(np.arange(len(rows)), widths, 0.62, left, color=colour, label=name)
        texts = [f"{width:.0%}" if width >= 0.07 else "" for width in widths]
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if name == "compute" else "black")
        left += widths
    axis.set_xlabel("part of a step's time")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def _draw_accuracy(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    for place, row in enumerate(rows):
        assert row.accuracy
        _whiskers(axis, place, row.accuracy)
        axis.plot(row.accuracy.median, place, "o", color=_colour(row), markersize=7)
    axis.margins(x=0.08)
    axis.set_xlabel("test accuracy, part of the images\n(median; whiskers: least to greatest;\naxis starts above 0)")
    axis.locator_params(axis="x", nbins=6)
    _framework_legend(figure, rows)
    return figure


def _draw_difference(rows: list[Row]) -> Figure:
    """Differences on a log axis; one of 0 has no place there and is written at the left edge."""
    figure, axis = _lanes(rows)
    values = [row.difference.largest or 0.0 for row in rows if row.difference]
    positive = [value for value in values if value > 0] or [1e-8]
    edge = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    axis.set_xscale("log")
    axis.set_xlim(edge, 10.0 ** (math.floor(math.log10(max(positive))) + 1))
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value > 0:
            axis.plot([edge, value], [place, place], color=_colour(row), linewidth=1.5)
            axis.plot(value, place, "o", color=_colour(row), markersize=7)
        else:
            axis.text(edge, place, " 0, equal bit for bit", va="center", fontsize=8)
    axis.xaxis.set_major_formatter("{x:.0e}")
    axis.set_xlabel("largest difference of any parameter from one process\n(no unit, logarithmic)")
    _framework_legend(figure, rows)
    return figure


def _draw_scaling(rows: list[Row]) -> Figure:
    """A panel for each base, which gives the ideal line; a line for each way to scale."""
    from matplotlib.figure import Figure

    panels: dict[str, dict[str, list[Row]]] = {}
    bases: dict[str, Row] = {}
    for row in rows:
        assert row.scaling
        base, run = row.scaling.base, row.run
        devices = f", {run.devices} devices a rank" if run.devices > 1 else ""
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
        colour, marker = SERIES_COLOURS[number % 6], MARKERS[number % 6]
        line = ("-", "--", "-.")[number % 3]  # lines that lie on each other are all seen
        label = textwrap.shorten(name, 60, placeholder=" …")
        axis.plot(x, y, line, marker=marker, color=colour, markersize=5, label=label)
    axis.set_title("\n".join(textwrap.wrap(f"base: {base.label}", 60)), fontsize=9, loc="left")
    axis.set(xlabel="replicas (ranks × devices)", ylabel="images/s", ylim=(0, None))
    axis.set_xticks(sorted({1, *(row.run.replicas for rows in lines.values() for row in rows)}))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.2), fontsize=8, frameon=False)


KINDS = (
    Kind(
        "Speed",
        "Bars: images a second, coloured by framework, with whiskers from the least to the greatest of the runs",
        lambda row: row.images_per_s,
        _draw_speed,
        "no run measured its speed",
    ),
    Kind(
        "Shares of a step",
        "Stacked bars: the parts of a step's time that computing, communicating and waiting for data take",
        lambda row: row.shares,
        _draw_shares,
        "no run measured them (train --profile N does)",
    ),
    Kind(
        "Scaling",
        "Lines: images a second over the number of replicas, beside the ideal line",
        lambda row: row.scaling and row.run.replicas > 1,
        _draw_scaling,
        "no row of several replicas has a comparable one of one replica",
    ),
    Kind(
        "Accuracy",
        "Points: test accuracy, coloured by framework, with whiskers from the least to the greatest of the runs",
        lambda row: row.accuracy,
        _draw_accuracy,
        "no run measured it",
    ),
    Kind(
        "Difference from one process",
        "Points on a logarithmic axis: the largest difference of any parameter from the run of one process",
        lambda row: row.difference and row.difference.largest is not None,
        _draw_difference,
        "no run has a comparable one with strategy single and a checkpoint of its last step",
    ),
)
