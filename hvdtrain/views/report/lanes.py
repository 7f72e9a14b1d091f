"""Charts with a horizontal lane for each row or rank: speed, score, shares of a step, and the time of ranks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvdtrain.config.score import ACCURACY
from hvdtrain.runs import plots
from hvdtrain.runs.run import unit_of
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system.stacks import TITLES
from hvdtrain.system.text import printable
from hvdtrain.views.report.rows import ReportRow, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 3.9  # narrow, so that the text is legible on a phone
LANE = 0.62
"""The width of a bar."""
FRAMEWORK_COLORS = {"mxnet": plots.BLUE, "torch": plots.ORANGE, "tensorflow": plots.GREEN}
STEP_COLORS = {
    "computing": plots.BLUE,
    "computing and communicating": plots.PINK,  # where the strategy does not tell them apart
    "communicating and waiting for ranks": plots.ORANGE,
    "waiting for rows": plots.GREEN,
}
"""Colors of the parts of a step."""
MAX_RANKS = 8
"""Of a run: with more, those that take longest and shortest for their own rows."""
MAX_LANES = 40


def wrapped(label: str, width: int, most: int = 4) -> str:
    return "\n".join(textwrap.wrap(label.replace(" × ", "\u00a0×\u00a0"), width, max_lines=most, placeholder=" …"))


def ends(spreads: Sequence[Spread]) -> list[list[float]]:
    return [
        [spread.median - spread.low for spread in spreads],
        [spread.high - spread.median for spread in spreads],
    ]


def _lanes(rows: Sequence[ReportRow]) -> tuple[Figure, Axes]:
    """A figure with a lane for each row, the first at the top."""
    labels = [wrapped(row.label, 26) for row in rows]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = plots.new_figure(WIDTH_IN, 1.1 + len(labels) * (0.16 + 0.15 * lines))
    axis = figure.subplots()
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    return figure, axis


def _color_of(row: ReportRow) -> str:
    return FRAMEWORK_COLORS.get(row.framework, plots.PINK)


def _whiskers(axis: Axes, lane: int, value: Spread) -> None:
    if value.number > 1:
        axis.errorbar([value.median], [lane], xerr=ends([value]), color="black", capsize=3, linewidth=1)


def _framework_legend(figure: Figure, rows: Sequence[ReportRow]) -> None:
    from matplotlib.patches import Patch

    colors = {TITLES.get(row.framework, row.framework): _color_of(row) for row in rows}
    patches = [Patch(color=color, label=title) for title, color in colors.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), frameon=False)


def draw_speed(rows: list[ReportRow]) -> Figure:
    """Bars: rows per second, colored by framework, with whiskers from the minimum to the maximum of the runs."""
    figure, axis = _lanes(rows)
    for lane, row in enumerate(rows):
        assert row.images_per_s
        axis.barh(lane, row.images_per_s.median, LANE, color=_color_of(row))
        _whiskers(axis, lane, row.images_per_s)
    figure.supxlabel(f"{unit_of(row.run for row in rows)}/s (median; whiskers: minimum to maximum)", fontsize=9)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5)
    _framework_legend(figure, rows)
    return figure


def draw_score(rows: list[ReportRow]) -> Figure:
    """Points: the score after the last step, colored by framework, of accuracies with bars for the interval that chance
    in the test rows gives, and whiskers from the minimum to the maximum of the runs.
    """
    figure, axis = _lanes(rows)
    for lane, row in enumerate(rows):
        assert row.score
        if row.chance:
            low, width = row.chance.low, row.chance.high - row.chance.low
            axis.barh(lane, width, 0.5, low, color=_color_of(row), alpha=0.35)
        _whiskers(axis, lane, row.score)
        axis.plot(row.score.median, lane, "o", color=_color_of(row), markersize=5, zorder=3)
    axis.use_sticky_edges = False
    axis.margins(x=0.08)
    name = rows[0].scored_by
    if name == ACCURACY and not all(row.chance for row in rows):  # else chance looks like a difference
        axis.set_xlim(*plots.widened_limits(axis.get_xlim(), axis.dataLim.intervalx))
    about = "; bars: 95 % interval of chance" if any(row.chance for row in rows) else ""
    parts = " or ".join(sorted({row.part for row in rows}))
    text = f"{parts} {printable(name)} (median{about};\nwhiskers: minimum to maximum; not starting at 0)"
    figure.supxlabel(text, fontsize=9)
    axis.locator_params(axis="x", nbins=4)
    _framework_legend(figure, rows)
    return figure


def _stack(figure: Figure, axis: Axes, times: Sequence[StepSeconds], lanes: Sequence[float]) -> None:
    """Stacked bars: the shares of each time, as numbers, too, where they have room."""
    shares = [time.shares or NO_TIME for time in times]
    parts = (
        [0.0 if one.communicate is None else one.compute for one in shares],
        [one.compute if one.communicate is None else 0.0 for one in shares],
        [one.communicate or 0.0 for one in shares],
        [one.data for one in shares],
    )
    left = np.zeros(len(lanes))
    for (name, color), widths in zip(STEP_COLORS.items(), parts, strict=True):
        if not any(widths):
            continue
        bars = axis.barh(lanes, widths, LANE, left, color=color, label=name)
        texts = [f"{width:.0%}" if width >= 0.1 else "" for width in widths]
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if color == plots.BLUE else "black")
        left += np.asarray(widths)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(loc="outside upper left", ncols=1, frameon=False, fontsize=8)


def draw_shares(rows: list[ReportRow]) -> Figure:
    """Stacked bars: the shares of a step for computing, communication and waiting for rows."""
    figure, axis = _lanes(rows)
    _stack(figure, axis, [row.shares for row in rows if row.shares], range(len(rows)))
    figure.supxlabel("share of a step's time", fontsize=9)
    return figure


def has_ranks(row: ReportRow) -> bool:
    return any(len(run.history.ranks) > 1 for run in row.runs)


def draw_ranks(rows: list[ReportRow]) -> Figure:
    """Stacked bars for each rank of a run: the shares for computing, communication and waiting for rows."""
    runs = [run for row in rows for run in row.runs if len(run.history.ranks) > 1]
    runs.sort(key=lambda run: -_difference(run.history.ranks))
    lanes: dict[float, tuple[int, StepSeconds]] = {}
    names: dict[float, str] = {}
    for run in runs:
        ranks = _outermost(run.history.ranks)
        if lanes and len(lanes) + len(ranks) > MAX_LANES:
            break
        place = max(lanes) + 1.2 if lanes else 0.0
        names[place] = run.name
        lanes.update({place + number: (rank, run.history.ranks[rank]) for number, rank in enumerate(ranks, 1)})
    figure = plots.new_figure(WIDTH_IN, 1.4 + 0.2 * (max(lanes) + 1))
    axis = figure.subplots()
    for place, name in names.items():
        axis.text(0, place, wrapped(name, 46, 1), fontsize=8, va="center")
    axis.set_yticks([*lanes], [f"rank {rank}" for rank, _ in lanes.values()], fontsize=8)
    axis.set_ylim(max(lanes) + 0.6, -0.6)
    axis.grid(axis="y", visible=False)
    _stack(figure, axis, [time for _, time in lanes.values()], [*lanes])
    left_out = [f"the {len(names)} of {len(runs)} runs whose ranks differ most"] * (len(names) < len(runs))
    if any(len(run.history.ranks) > MAX_RANKS for run in runs[: len(names)]):
        left_out.append(f"of a run, the {MAX_RANKS} ranks with least and most own time")
    figure.supxlabel("\n".join(["share of the time of training steps", *(f"({one})" for one in left_out)]), fontsize=9)
    return figure


def _difference(ranks: Mapping[int, StepSeconds]) -> float:
    """How much the ranks differ in the time for their own rows, as a share of the longest time."""
    longest, local = max(time.total for time in ranks.values()), [time.local for time in ranks.values()]
    return (max(local) - min(local)) / longest if longest else 0.0


def _outermost(ranks: Mapping[int, StepSeconds]) -> list[int]:
    """The ranks in their order; of many, those that take longest and shortest for their own rows."""
    numbers = sorted(ranks, key=lambda rank: ranks[rank].local)
    if len(numbers) > MAX_RANKS:
        numbers = [*numbers[: MAX_RANKS // 2], *numbers[-MAX_RANKS // 2 :]]
    return sorted(numbers)
