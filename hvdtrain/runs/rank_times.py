"""The times of a run's ranks, from the records of its logging steps. Ranks may have left and joined between two."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hvdtrain.runs.json_lines import Records
from hvdtrain.runs.step_times import NO_TIME, StepSeconds, from_record
from hvdtrain.system.text import finite_number

MAX_TIMES = 1 << 20
"""Of ranks in logging steps, for views of ranks: some 200 bytes each."""


class RankTimes(NamedTuple):
    """What one logging step took each rank."""

    step: int
    epoch: float | None
    times: dict[int, StepSeconds]
    """By rank, of those that were there."""


def measured(records: Iterable[dict[str, object]]) -> Iterator[RankTimes]:
    """Those of records of logging steps that have the times of ranks."""
    for record in records:
        step = record.get("step")
        if isinstance(step, int) and (times := from_record(record)):
            yield RankTimes(step, finite_number(record.get("epoch")), times)


def newest(records: Records, most: int) -> list[RankTimes]:
    """The times of ranks in records of logging steps, in their order.

    most: of more logging steps, every second, third, ... up to the newest is taken.
    """
    most = min(most, max(MAX_TIMES // max(len(_last_ranks(records)), 1), 1))
    chosen = records[::-1][:: max(-(-len(records) // most), 1)]
    kept, size = [], 0
    for interval in measured(chosen):
        size += len(interval.times)
        if size > MAX_TIMES:
            break
        kept.append(interval)
    return kept[::-1]


def summed(records: Records, has_changed: bool) -> dict[int, StepSeconds]:
    """By rank, the times of the logging steps in which the same ranks were there, without the first one if others were
    measured, too: ranks warm up in it.

    has_changed: whether the run lost ranks or took new ones in. Then the ranks that were together in most logging
    steps count; else those of the newest one, as a run may continue with another number of ranks.
    """
    ranks = _usual_ranks(records) if has_changed else hash(_last_ranks(records))
    unknown = any(time.communicate is None for times in _warm(records, ranks) for time in times.values())
    sums: dict[int, StepSeconds] = {}
    for times in _warm(records, ranks):
        for rank, time in times.items():
            known = StepSeconds(time.total - time.data, None, time.data) if unknown else time
            sums[rank] = sums.get(rank, NO_TIME).plus(known)
    return sums


def _last_ranks(records: Records) -> frozenset[int]:
    """The ranks of the newest logging step that measured them."""
    last = next(measured(records[::-1]), None)
    return frozenset(last.times if last else ())


def _usual_ranks(records: Records) -> int:
    """The hash of the ranks that were together in most logging steps."""
    counts = Counter(hash(frozenset(interval.times)) for interval in measured(records))
    return counts.most_common(1)[0][0] if counts else 0


def _warm(records: Records, ranks: int) -> Iterator[dict[int, StepSeconds]]:
    """The times of the ranks with that hash, without those of the first logging step if others were measured."""
    intervals = (interval.times for interval in measured(records))
    first = next(intervals, {})
    others = itertools.chain([next(intervals, first)], intervals)
    return (times for times in others if hash(frozenset(times)) == ranks)
