"""Charts of lines: losses and accuracy over epochs, and speed over the number of replicas."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from hvdtrain.config.options import TITLES
from hvdtrain.config.score import ACCURACY, LOSS
from hvdtrain.runs import plots
from hvdtrain.runs.metrics import History
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.text import printable
from hvdtrain.views.report.charts import WIDTH_IN, color_of, wrapped
from hvdtrain.views.report.rows import Row, Spread, unit_of, wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLORS = len(plots.COLORS)
"""With more rows than these, lines have the colors of their frameworks."""
MAX_LINES = 60
"""With more runs than these, the first of each row is drawn, and of so many rows."""
MAX_POINTS, MAX_ALL_POINTS = 300, 12_000
"""Of a line, and of all lines: the page stays small."""
LABEL_CHARACTERS, LABEL_LINES = 50, 4
"""Of a row in the legend; rows of tasks may differ in the last of many settings only."""
Points = list[tuple[float, float]]
"""Values over epochs."""
TRAIN_LOSS = "training loss"
MAX_PANELS = 8


class _Line(NamedTuple):
    """How the curves of a run are drawn."""

    run: RecordedRun
    color: str
    style: str
    bold: bool


def has_curve(row: Row) -> bool:
    """Whether any run of the row recorded its losses."""
    histories = [run.history for run in row.runs]
    return any(one.train_loss or one.evaluated_loss or one.metrics or one.logged for one in histories)


def _points(name: str, history: History) -> Points:
    """The curve of a panel."""
    losses = {TRAIN_LOSS: history.train_loss, f"{history.part} {LOSS}": history.evaluated_loss}
    metric = history.metrics.get(name.removeprefix(f"{history.part} "))
    curve = losses.get(name) or metric or history.logged.get(name)
    return curve.points if curve else []


def _panels(lines: list[_Line]) -> list[str]:
    """The names of the figures that any of the runs recorded: losses, then metrics, then those that scripts logged."""
    histories = [line.run.history for line in lines]
    losses = dict.fromkeys(f"{history.part} {LOSS}" for history in histories)
    metrics = dict.fromkeys(f"{history.part} {name}" for history in histories for name in history.metrics)
    logged = dict.fromkeys(name for history in histories for name in history.logged)
    names = [TRAIN_LOSS, *losses, *metrics, *logged]
    return [name for name in names if any(_points(name, line.run.history) for line in lines)][:MAX_PANELS]


def draw_curves(rows: list[Row]) -> Figure:
    """A panel for each figure that was recorded; repetitions have the color of their row."""
    labels, lines = _few(rows) if len(rows) <= MAX_COLORS else _many(rows)
    panels = _panels(lines)
    height = 1.9 * len(panels) + 0.19 * sum(label.count("\n") + 1 for label in labels) + 0.3
    figure = plots.new_figure(WIDTH_IN, height)
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axis, name in zip(axes, panels, strict=True):
        is_accuracy = name in (f"validation {ACCURACY}", f"test {ACCURACY}")
        _draw_panel(axis, lines, name, bands=is_accuracy and len(rows) <= MAX_COLORS)
        if is_accuracy:
            axis.set_ylim(*plots.widened_limits(axis.get_ylim(), axis.dataLim.intervaly))
        axis.set_ylabel(printable(name))
    axes[-1].set_xlabel("epoch")
    figure.legend(
        handles=list(map(_handle, labels.values(), labels)), loc="outside lower left", fontsize=8, frameon=False
    )
    return figure


Labels = dict[str, _Line]


def _few(rows: list[Row]) -> tuple[Labels, list[_Line]]:
    """A color for each row."""
    labels: Labels = {}
    lines = []
    for number, row in enumerate(rows):
        color, style = plots.COLORS[number], plots.LINES[number % 3]
        drawn = [_Line(run, color, style, False) for run in row.runs[: MAX_LINES // len(rows)]]
        label = _wrapped(row.label)
        labels[label if label not in labels else f"{label} ({number + 1})"] = drawn[0]
        lines += drawn
    return labels, lines


def _many(rows: list[Row]) -> tuple[Labels, list[_Line]]:
    """A color for each framework; the runs that end with the lowest and the highest loss are bold and named."""
    total = sum(len(row.runs) for row in rows)
    chosen = (
        [(row, run) for row in rows for run in row.runs] if total <= MAX_LINES else [(row, row.run) for row in rows]
    )
    chosen = chosen[:MAX_LINES]
    labels: Labels = {}
    lines = []
    for row, run in chosen:
        lines.append(_Line(run, color_of(row), "-", False))
        labels.setdefault(TITLES.get(row.framework, row.framework), lines[-1])
    ends = [(loss, number) for number, (_, run) in enumerate(chosen) if (loss := _last_loss(run.history)) is not None]
    for text, color, style, (_, number) in (
        (("lowest", "#000000", "-", min(ends)), ("highest", "#000000", ":", max(ends))) if len(ends) > 1 else ()
    ):
        row, run = chosen[number]
        lines.append(_Line(run, color, style, True))
        labels[_wrapped(f"{text} loss at the end: {row.label}")] = lines[-1]
    if len(chosen) < total:
        labels[_wrapped(f"({len(chosen)} of {total} runs are drawn)")] = _Line(rows[0].run, "none", "-", False)
    return labels, lines


def _last_loss(history: History) -> float | None:
    curve = history.evaluated_loss or history.train_loss
    return curve.values[-1] if curve else None


def _wrapped(label: str) -> str:
    return wrapped(label, LABEL_CHARACTERS, LABEL_LINES)


def _handle(line: _Line, label: str) -> object:
    from matplotlib.lines import Line2D

    width = 2.0 if line.bold else 1.3
    return Line2D([], [], color=line.color, linestyle=line.style, linewidth=width, label=label)


def _draw_panel(axis: Axes, lines: list[_Line], name: str, bands: bool) -> None:
    most = max(min(MAX_POINTS, MAX_ALL_POINTS // len(lines)), 2)
    for line in lines:
        points = thinned(_points(name, line.run.history), most)
        if not points:
            continue
        x, y = zip(*points, strict=True)
        width, alpha = (2.0, 1.0) if line.bold else (1.3, 0.9 if bands or len(lines) < 10 else 0.5)
        marker = "o" if len(points) < 2 else ""
        axis.plot(x, y, line.style, color=line.color, linewidth=width, alpha=alpha, marker=marker, markersize=4)
        if bands:
            _band(axis, line, points)


def _band(axis: Axes, line: _Line, points: Points) -> None:
    """What chance in the test rows gives around each accuracy."""
    intervals = [(x, y, chance) for x, y in points if (chance := wilson(y, line.run.test_rows))]
    epochs, values = [x for x, _, _ in intervals], [y for _, y, _ in intervals]
    low, high = [chance.low for _, _, chance in intervals], [chance.high for _, _, chance in intervals]
    if len(intervals) == 1:
        ends = [[values[0] - low[0]], [high[0] - values[0]]]
        axis.errorbar(epochs, values, yerr=ends, color=line.color, capsize=3, linewidth=1)
    else:
        axis.fill_between(epochs, low, high, color=line.color, alpha=0.15, linewidth=0)


def thinned(curve: Points, most: int) -> Points:
    """At most so many points: the means of neighboring ones; the last one stays as it is."""
    if len(curve) <= most:
        return curve
    size = -(-len(curve) // (most - 1))
    parts = [curve[start : start + size] for start in range(0, len(curve) - 1, size)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    return [*means, curve[-1]]


def draw_scaling(rows: list[Row]) -> Figure:
    """One panel per base, which defines the ideal line; one line per strategy and kind of scaling."""
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
    figure = plots.new_figure(WIDTH_IN, sum(heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (label, lines) in zip(axes, panels.items(), strict=True):
        _draw_base(axis, bases[label], lines)
    return figure


def _draw_base(axis: Axes, base: Row, lines: dict[str, list[Row]]) -> None:
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
            yerr=_ends(spreads),
            fmt=plots.LINES[(number + number // 6) % len(plots.LINES)],
            marker=plots.MARKERS[number % 6],
            color=plots.COLORS[number % 6],
            markersize=5,
            elinewidth=1,
            capsize=2,
            label=textwrap.shorten(name, 46, placeholder=" …"),
        )
    axis.set_title("\n".join(textwrap.wrap(f"base: {base.label}", 46)), fontsize=9, loc="left")
    axis.set(xlabel="replicas (whiskers: minimum to maximum)", ylabel=f"{unit_of([base])}/s", ylim=(0, None))
    axis.set_xticks(sorted({1, *(row.run.replicas for rows in lines.values() for row in rows)}))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.3), fontsize=8, frameon=False)


def _ends(spreads: tuple[Spread, ...]) -> list[list[float]]:
    """Lengths of whiskers, downwards and upwards."""
    return [
        [spread.median - spread.minimum for spread in spreads],
        [spread.maximum - spread.median for spread in spreads],
    ]
