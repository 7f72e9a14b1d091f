"""How the ranks of each run spent their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hvdtrain.runs.step_times import StepTime
from hvdtrain.views.report.charts.lanes import stack, step_parts
from hvdtrain.views.report.charts.style import WIDTH_IN, wrapped
from hvdtrain.views.report.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME_CHARACTERS = 46
MOST_RANKS = 8
"""Of a run: with more, those that take longest and shortest for their own rows."""
MOST_LANES = 40


class _Lane(NamedTuple):
    """A rank of a run."""

    rank: int
    time: StepTime
    place: float


def has_ranks(row: Row) -> bool:
    """Whether any run of the row recorded the time of several ranks."""
    return any(len(run.history.ranks) > 1 for run in row.runs)


def draw_ranks(rows: list[Row]) -> Figure:
    """Stacked bars, one for each rank, below the name of their run; the runs whose ranks differ most come first."""
    from matplotlib.figure import Figure

    names, chosen, left_out = _chosen(rows)
    places = [one.place for one in chosen]
    figure = Figure(figsize=(WIDTH_IN, 1.4 + 0.2 * (places[-1] + 1)), layout="constrained")
    axis = figure.subplots()
    for place, name in names:
        axis.text(0, place, wrapped(name, NAME_CHARACTERS, 1), fontsize=8, va="center")
    axis.set_yticks(places, [f"rank {one.rank}" for one in chosen], fontsize=8)
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
        if lanes and len(lanes) + len(ranks) > MOST_LANES:
            break
        names.append((place, run.name))
        lanes += [_Lane(rank, run.history.ranks[rank], place + 1 + number) for number, rank in enumerate(ranks)]
        place += len(ranks) + 1.2
    drawn = runs[: len(names)]
    texts = [f"the {len(drawn)} of {len(runs)} runs whose ranks differ most"] * (len(drawn) < len(runs))
    many = any(len(run.history.ranks) > MOST_RANKS for run in drawn)
    texts += [f"of a run, the {MOST_RANKS} ranks with least and most own time"] * many
    return names, lanes, "".join(f"\n({text})" for text in texts)


def _spread(ranks: list[StepTime]) -> float:
    """How much the ranks differ in the time for their own rows, as a share of the longest step time."""
    total = max(one.total for one in ranks)
    own = [one.local for one in ranks]
    return (max(own) - min(own)) / total if total > 0 else 0.0


def _outermost(ranks: list[StepTime]) -> list[int]:
    """The ranks in their order; of many, those that take longest and shortest for their own rows."""
    numbers = sorted(range(len(ranks)), key=lambda rank: ranks[rank].local)
    if len(numbers) > MOST_RANKS:
        numbers = [*numbers[: MOST_RANKS // 2], *numbers[-MOST_RANKS // 2 :]]
    return sorted(numbers)
