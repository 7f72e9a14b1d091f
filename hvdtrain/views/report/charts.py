"""The charts of a report: lanes, which its page has as HTML, and lines, which the live page's chart.js draws in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hvdtrain.config.score import ACCURACY
from hvdtrain.runs.plots import MIN_ACCURACY_SPAN, widened
from hvdtrain.runs.run import unit_of
from hvdtrain.runs.step_times import StepSeconds
from hvdtrain.system.text import figure, printable
from hvdtrain.views.report.rows import ReportRow, ValueRange
from hvdtrain.views.web.listing import shortened

MAX_ROWS = 24
"""Rows whose curves are drawn: as many as there are different lines."""
MAX_LINES = 60
"""Runs whose curves are drawn, of each row the first ones."""
MAX_POINTS, MAX_ALL_POINTS = 300, 12_000
"""Of a curve, and of all of a chart: the page stays small."""
MAX_CURVES = 8


class Bar(NamedTuple):
    kind: str
    """Its class in the page, which decides its color."""
    start: float
    """Of the lane, as `width`."""
    width: float


class Lane(NamedTuple):
    label: str
    bars: Sequence[Bar]
    text: str


class LaneChart(NamedTuple):
    title: str
    lanes: list[Lane]
    has_parts: bool = False
    """Whether bars are parts of a step, whose colors need a legend."""


def lane_charts(rows: list[ReportRow]) -> list[LaneChart]:
    """Those for which any row has figures: speed, scores, and the parts of a step."""
    scores = dict.fromkeys(row.scored_by for row in rows if row.scored_by)
    shares = [Lane(row.label, *_parts(row.shares)) for row in rows if row.shares]
    charts = [
        LaneChart(f"{unit_of(row.run for row in rows)}/s (median, minimum to maximum)", _speed_lanes(rows)),
        *(_score_chart([row for row in rows if row.scored_by == name], name) for name in scores),
        LaneChart("Shares of a step, %", shares, has_parts=True),
    ]
    return [chart for chart in charts if chart.lanes]


def _speed_lanes(rows: Iterable[ReportRow]) -> list[Lane]:
    speeds = [(row.label, row.images_per_s) for row in rows if row.images_per_s]
    most = max((speed.high for _, speed in speeds), default=0.0)
    lanes = []
    for label, speed in speeds:
        bars = [_bar("value", ValueRange(0.0, speed.median), 0.0, most), _bar("whisker", speed, 0.0, most)]
        lanes.append(Lane(label, bars, f"{speed.median:,.0f}"))
    return lanes


def _score_chart(rows: Sequence[ReportRow], name: str) -> LaneChart:
    scores = [(row.label, row.score, row.chance) for row in rows if row.score]
    ranges = [known for _, *both in scores for known in both if known]
    low, high = min(one.low for one in ranges), max(one.high for one in ranges)
    if name == ACCURACY:
        low, high = widened(low, high)
    lanes = []
    for label, score, chance in scores:
        bars = [_bar("chance", chance, low, high)] if chance else []
        point = ValueRange(score.median, score.median)
        bars += [_bar("whisker", score, low, high), _bar("point", point, low, high)]
        lanes.append(Lane(label, bars, figure(score.median)))
    parts = " or ".join(sorted({row.part for row in rows}))
    about = "; pale: 95 % interval of chance" if any(chance for *_, chance in scores) else ""
    ends = ValueRange(low, high).text()
    return LaneChart(f"{parts} {printable(name)}, {ends} (median, minimum to maximum{about})", lanes)


def _bar(kind: str, known: ValueRange, low: float, high: float) -> Bar:
    """The bar of a range in a lane from `low` to `high`."""
    span = high - low or 1.0
    return Bar(kind, (known.low - low) / span, (known.high - known.low) / span)


def _parts(shares: StepSeconds) -> tuple[list[Bar], str]:
    """Bars of the parts of a step next to each other, and their percentages."""
    bars, start = [], 0.0
    for kind, share in shares._asdict().items():
        bars.append(Bar(kind, start, share or 0.0))
        start += share or 0.0
    return bars, " / ".join("?" if share is None else f"{100 * share:.0f}" for share in shares)


def line_charts(rows: list[ReportRow]) -> list[dict[str, Any]]:
    """Groups of charts with one legend, as JSON: scaling, a group for each base, and learning curves."""
    curves = _learning_curves(rows[:MAX_ROWS])
    left_out = f" ({MAX_ROWS} of {len(rows)} rows)" if len(rows) > MAX_ROWS else ""
    return [*_scaling(rows), *([{"title": f"Learning curves{left_out}", "charts": curves}] if curves else [])]


def _learning_curves(rows: list[ReportRow]) -> list[dict[str, Any]]:
    """Losses, then metrics, then what scripts logged, with a line for each run in the style of its row."""
    runs = [(slot, row.label, run) for slot, row in enumerate(rows) for run in row.runs[: MAX_LINES // len(rows)]]
    most = max(min(MAX_POINTS, MAX_ALL_POINTS // len(runs)), 2)
    lines: dict[str, list[dict[str, Any]]] = {}
    for slot, label, run in runs:
        for name, curve in ((name, curve) for name, curve in run.curves.items() if curve):
            x, _, y = curve.thinned(most)
            line = _line(label, slot, zip(x, y, strict=True))
            lines.setdefault(printable(name), []).append(line)
    charts = []
    for name, shown in list(lines.items())[:MAX_CURVES]:
        least = MIN_ACCURACY_SPAN if name in (f"validation {ACCURACY}", f"test {ACCURACY}") else 0
        charts.append({"title": name, "unit": "epoch", "least": least, "lines": shown})
    return charts


Points = Iterable[tuple[float, float]]


def _line(name: str, slot: int, points: Points) -> dict[str, Any]:
    """As chart.js has it; slot: of its style."""
    x, y = zip(*points, strict=True)
    return {"name": name, "slot": slot, "x": shortened(x), "y": shortened(y)}


def _scaling(rows: list[ReportRow]) -> list[dict[str, Any]]:
    """Rows per second over the number of replicas, a group for each base, with the line of ideal scaling."""
    series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    bases: dict[str, ReportRow] = {}
    for row in rows:
        if not row.scaling or not row.images_per_s or row.run.replicas < 2:
            continue
        base = bases.setdefault(row.scaling.base.label, row.scaling.base)
        devices = f", {row.run.config.devices} devices per rank" if row.run.config.devices > 1 else ""
        note = f", {row.note}" if row.note != base.note else ""
        name = f"{row.strategy}, {row.scaling.kind}{devices}{note}"
        point = row.run.replicas, row.images_per_s.median
        series.setdefault(base.label, {}).setdefault(name, []).append(point)
    return [
        {"title": f"Scaling from {label}", "charts": [_scaling_chart(base, series[label])]}
        for label, base in bases.items()
    ]


def _scaling_chart(base: ReportRow, series: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    assert base.images_per_s
    one = base.images_per_s.median
    most = max(replicas for points in series.values() for replicas, _ in points)
    lines = [_line("ideal: replicas times the base", 0, [(1.0, one), (most, most * one)])]
    lines += [_line(name, slot, [(1.0, one), *sorted(points)]) for slot, (name, points) in enumerate(series.items(), 1)]
    return {"title": f"{unit_of([base.run])}/s", "unit": "replicas", "lines": lines}
