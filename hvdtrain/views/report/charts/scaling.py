"""Speed over the number of replicas."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from hvdtrain.views.report.charts.style import LINES, MARKERS, SERIES_COLORS, WIDTH_IN
from hvdtrain.views.report.rows import Row, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_scaling(rows: list[Row]) -> Figure:
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
    """Whiskers from the minimum to the maximum of repetitions, side by side where lines have the same replicas."""
    assert base.images_per_s
    one = base.images_per_s.median
    most = max(row.run.replicas for rows in lines.values() for row in rows)
    axis.plot([1, most], [one, most * one], ":", color="black", label="ideal: replicas times the base")
    for number, (name, rows) in enumerate(lines.items()):
        points = sorted((row.run.replicas, row.images_per_s) for row in rows if row.images_per_s)
        x, spreads = zip((1, base.images_per_s), *points, strict=True)
        beside = 0.012 * most * (number - (len(lines) - 1) / 2)
        axis.errorbar(
            *([place + beside * (place > 1) for place in x], [value.median for value in spreads]),
            yerr=_ends(spreads),
            fmt=LINES[(number + number // 6) % len(LINES)],
            marker=MARKERS[number % 6],
            color=SERIES_COLORS[number % 6],
            markersize=5,
            elinewidth=1,
            capsize=2,
            label=textwrap.shorten(name, 46, placeholder=" …"),
        )
    axis.set_title("\n".join(textwrap.wrap(f"base: {base.label}", 46)), fontsize=9, loc="left")
    axis.set(xlabel="replicas (whiskers: minimum to maximum)", ylabel="images/s", ylim=(0, None))
    axis.set_xticks(sorted({1, *(row.run.replicas for rows in lines.values() for row in rows)}))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.3), fontsize=8, frameon=False)


def _ends(spreads: tuple[Spread, ...]) -> list[list[float]]:
    """Lengths of whiskers, downwards and upwards."""
    return [[one.median - one.minimum for one in spreads], [one.maximum - one.median for one in spreads]]
