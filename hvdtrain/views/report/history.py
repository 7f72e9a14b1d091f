"""What runs wrote while they trained: learning curves, and how each rank spent its time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.runs import metrics
from hvdtrain.system.json_text import finite_number

Curve = list[tuple[float, float]]
"""Values over epochs."""


class RankTime(NamedTuple):
    """Seconds of a rank's training steps, over the logging intervals that have them."""

    compute: float
    """With communication where that is not known."""
    communicate: float | None
    """Transfer, and waiting for other ranks; None where the strategy cannot tell it from computing."""
    data: float
    """Waiting for rows."""

    @property
    def total(self) -> float:
        return self.compute + (self.communicate or 0.0) + self.data

    @property
    def own(self) -> float:
        """What the rank took for its own rows: other ranks wait for the one with the most."""
        return self.compute + self.data


class History(NamedTuple):
    """A run's metrics. What it did not record is empty."""

    train_loss: Curve
    test_loss: Curve
    test_accuracy: Curve
    ranks: list[RankTime]
    """By rank."""


def read_history(folder: Path) -> History:
    """The metrics of a run's folder: empty if they cannot be read, and without records that no run writes."""
    try:
        records = metrics.read(folder / "metrics.jsonl")
    except OSError:
        records = []
    train, test = ([one for one in records if one["kind"] == kind] for kind in ("train", "test"))
    return History(_curve(train, "loss"), _curve(test, "loss"), _curve(test, "accuracy"), _rank_times(train))


def _curve(records: Iterable[dict[str, Any]], name: str) -> Curve:
    points = ((finite_number(record.get("epoch")), finite_number(record.get(name))) for record in records)
    return [(epoch, value) for epoch, value in points if epoch is not None and value is not None]


class _Interval(NamedTuple):
    """Seconds of each rank in a logging interval."""

    compute: list[float]
    communicate: list[float] | None
    data: list[float]


def _rank_times(records: list[dict[str, Any]]) -> list[RankTime]:
    """The sums over the intervals with the last one's number of ranks: a run may have continued with other ranks.

    The first interval is left out where there are others, as ranks warm up in it.
    """
    found = [interval for record in records if (interval := _interval(record))]
    found = [one for one in found[1:] or found if len(one.compute) == len(found[-1].compute)]
    known = all(one.communicate for one in found)
    ranks = []
    for rank in range(len(found[-1].compute) if found else 0):
        compute, data = sum(one.compute[rank] for one in found), sum(one.data[rank] for one in found)
        communicate = sum(one.communicate[rank] for one in found if one.communicate)
        ranks.append(RankTime(compute, communicate, data) if known else RankTime(compute + communicate, None, data))
    return ranks


def _interval(record: dict[str, Any]) -> _Interval | None:
    """The times of a record; None if it lacks those of computing or data, or not all lists have the same ranks."""
    compute, communicate, data = (_numbers(record.get(name)) for name in ("compute_s", "communicate_s", "data_s"))
    if not compute or not data or {len(data), len(communicate or data)} != {len(compute)}:
        return None
    return _Interval(compute, communicate, data)


def _numbers(value: Any) -> list[float] | None:
    """A list of times; None for anything else."""
    numbers = [finite_number(one) for one in value] if isinstance(value, list) else []
    known = [one for one in numbers if one is not None and one >= 0]
    return known if known and len(known) == len(numbers) else None


class Straggler(NamedTuple):
    """A rank that the others wait for."""

    rank: int
    ratio: float
    """Its own time by that of the median of the other ranks."""


SLOW_FACTOR = 1.2
"""A rank is named from this multiple of the others' median on."""


def straggler(ranks: list[RankTime]) -> Straggler | None:
    """The slowest rank if the others wait for it; None where communication is not known or no rank stands out."""
    if len(ranks) < 2 or any(one.communicate is None for one in ranks):
        return None
    slowest = max(range(len(ranks)), key=lambda rank: ranks[rank].own)
    others = statistics.median(one.own for rank, one in enumerate(ranks) if rank != slowest)
    if others <= 0 or ranks[slowest].own < SLOW_FACTOR * others:
        return None
    return Straggler(slowest, ranks[slowest].own / others)
