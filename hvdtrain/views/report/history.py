"""What runs wrote while they trained: learning curves, and how each rank spent its time."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.runs import metrics
from hvdtrain.runs.step_times import StepTime, from_record
from hvdtrain.system.text import finite_number

Curve = list[tuple[float, float]]
"""Values over epochs."""


class History(NamedTuple):
    """A run's metrics. What it did not record is empty."""

    train_loss: Curve
    test_loss: Curve
    test_accuracy: Curve
    ranks: list[StepTime]
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


def _rank_times(records: list[dict[str, Any]]) -> list[StepTime]:
    """The sums over the intervals with the last one's number of ranks: a run may have continued with other ranks.

    The first interval is left out where there are others, as ranks warm up in it.
    """
    intervals = [times for record in records if (times := from_record(record))]
    intervals = [times for times in intervals[1:] or intervals if len(times) == len(intervals[-1])]
    known = all(time.communicate is not None for times in intervals for time in times)
    if not known:
        intervals = [[StepTime(time.total - time.data, None, time.data) for time in times] for times in intervals]
    return [functools.reduce(StepTime.plus, times) for times in zip(*intervals, strict=True)]
