"""Charts of bars with a horizontal lane for each row or rank: speed, parts of a step, accuracy, parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hvdtrain.config.score import ACCURACY
from hvdtrain.runs import plots
from hvdtrain.runs.step_times import StepSeconds
from hvdtrain.system.text import printable
from hvdtrain.views.report.charts import WIDTH_IN, color_of, framework_legend, wrapped
from hvdtrain.views.report.rows import Row, Spread, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPUTING, COMMUNICATING, WAITING = "computing", "communicating and waiting for ranks", "waiting for rows"
TOGETHER = "computing and communicating"
"""Where the strategy does not tell them apart."""
STEP_COLORS = {COMPUTING: plots.BLUE, TOGETHER: plots.PINK, COMMUNICATING: plots.ORANGE, WAITING: plots.GREEN}
NAME_CHARACTERS = 46
MAX_RANKS = 8
"""Of a run: with more, those that take longest and shortest for their own rows."""
MAX_LANES = 40


def _lanes(rows: Sequence[Row]) -> tuple[Figure, Axes]:
    """A figure with one horizontal lane for each row, the first at the top."""
    labels = [wrapped(row.label, 26, 4) for row in rows]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = plots.new_figure(WIDTH_IN, 1.1 + len(labels) * (0.16 + 0.15 * lines))
    axis = figure.subplots()
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    return figure, axis


def percent(value: float, _: object = None) -> str:
    """For the ticks of an axis."""
    return f"{value:.0%}"


def step_parts(times: Sequence[StepSeconds]) -> dict[str, tuple[str, list[float]]]:
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
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if color == plots.BLUE else "black")
        left += np.asarray(widths)
    axis.xaxis.set_major_formatter(percent)


def _whiskers(axis: Axes, lane: int, value: Spread) -> None:
    if value.number > 1:
        ends = [[value.median - value.minimum], [value.maximum - value.median]]
        axis.errorbar([value.median], [lane], xerr=ends, color="black", capsize=3, linewidth=1)


def draw_speed(rows: list[Row]) -> Figure:
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


def draw_shares(rows: list[Row]) -> Figure:
    figure, axis = _lanes(rows)
    stack(axis, step_parts([row.shares for row in rows if row.shares]), range(len(rows)))
    figure.supxlabel("share of a step's time", fontsize=9)
    figure.legend(loc="outside upper left", ncols=1, frameon=False, fontsize=8)
    return figure


def draw_score(rows: list[Row]) -> Figure:
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


def draw_difference(rows: list[Row]) -> Figure:
    """Differences on a logarithmic axis; 0, which has no place on it, is written at the left edge."""
    figure, axis = _lanes(rows)
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


class _Lane(NamedTuple):
    """A rank of a run."""

    rank: int
    time: StepSeconds
    place: float


def has_ranks(row: Row) -> bool:
    """Whether any run of the row recorded the time of several ranks."""
    return any(len(run.history.ranks) > 1 for run in row.runs)


def draw_ranks(rows: list[Row]) -> Figure:
    """Stacked bars, one for each rank, below the name of their run; the runs whose ranks differ most come first."""
    names, chosen, left_out = _chosen(rows)
    places = [lane.place for lane in chosen]
    figure = plots.new_figure(WIDTH_IN, 1.4 + 0.2 * (places[-1] + 1))
    axis = figure.subplots()
    for place, name in names:
        axis.text(0, place, wrapped(name, NAME_CHARACTERS, 1), fontsize=8, va="center")
    axis.set_yticks(places, [f"rank {lane.rank}" for lane in chosen], fontsize=8)
    axis.set_ylim(places[-1] + 0.6, -0.6)
    axis.grid(axis="y", visible=False)
    stack(axis, step_parts([lane.time for lane in chosen]), places)
    figure.supxlabel("share of the time of training steps" + left_out, fontsize=9)
    figure.legend(loc="outside upper left", ncols=1, frameon=False, fontsize=8)
    return figure


def _chosen(rows: list[Row]) -> tuple[list[tuple[float, str]], list[_Lane], str]:
    """The names of runs with their places, the lanes, and what was left out."""
    runs = [run for row in rows for run in row.runs if len(run.history.ranks) > 1]
    runs.sort(key=lambda run: -_spread(run.history.ranks))
    names: list[tuple[float, str]] = []
    lanes: list[_Lane] = []
    place = 0.0
    for run in runs:
        ranks = _outermost(run.history.ranks)
        if lanes and len(lanes) + len(ranks) > MAX_LANES:
            break
        names.append((place, run.name))
        lanes += [_Lane(rank, run.history.ranks[rank], place + 1 + number) for number, rank in enumerate(ranks)]
        place += len(ranks) + 1.2
    drawn = runs[: len(names)]
    texts = [f"the {len(drawn)} of {len(runs)} runs whose ranks differ most"] * (len(drawn) < len(runs))
    many = any(len(run.history.ranks) > MAX_RANKS for run in drawn)
    texts += [f"of a run, the {MAX_RANKS} ranks with least and most own time"] * many
    return names, lanes, "".join(f"\n({text})" for text in texts)


def _spread(ranks: Mapping[int, StepSeconds]) -> float:
    """How much the ranks differ in the time for their own rows, as a share of the longest step time."""
    total = max(time.total for time in ranks.values())
    local = [time.local for time in ranks.values()]
    return (max(local) - min(local)) / total if total > 0 else 0.0


def _outermost(ranks: Mapping[int, StepSeconds]) -> list[int]:
    """The ranks in their order; of many, those that take longest and shortest for their own rows."""
    numbers = sorted(ranks, key=lambda rank: ranks[rank].local)
    if len(numbers) > MAX_RANKS:
        numbers = [*numbers[: MAX_RANKS // 2], *numbers[-MAX_RANKS // 2 :]]
    return sorted(numbers)
