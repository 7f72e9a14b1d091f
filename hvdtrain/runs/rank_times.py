"""The times of a run's ranks, from the records of its logging steps. Ranks may have left and joined between two."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from hvdtrain.runs.json_lines import Records
from hvdtrain.runs.step_times import NO_TIME, StepSeconds, from_record


def _measured(records: Iterable[dict[str, object]]) -> Iterator[dict[int, StepSeconds]]:
    """What each logging step took each of the ranks that were there, of those that measured it."""
    return filter(None, map(from_record, records))


def summed(records: Records, has_changed: bool) -> dict[int, StepSeconds]:
    """By rank, the times of the logging steps in which the same ranks were there, without the first one if others were
    measured, too: ranks warm up in it.

    has_changed: whether the run lost ranks or took new ones in. Then the ranks that were together in most logging
    steps count; else those of the newest one, as a run may continue with another number of ranks.
    """
    newest = frozenset(next(_measured(records[::-1]), ()))
    ranks = _usual_ranks(records) if has_changed else hash(newest)
    unknown = any(time.communicate is None for times in _warm(records, ranks) for time in times.values())
    sums: dict[int, StepSeconds] = {}
    for times in _warm(records, ranks):
        for rank, time in times.items():
            known = StepSeconds(time.total - time.data, None, time.data) if unknown else time
            sums[rank] = sums.get(rank, NO_TIME).plus(known)
    return sums


def _usual_ranks(records: Records) -> int:
    """The hash of the ranks that were together in most logging steps."""
    counts = Counter(hash(frozenset(times)) for times in _measured(records))
    return counts.most_common(1)[0][0] if counts else 0


def _warm(records: Records, ranks: int) -> Iterator[dict[int, StepSeconds]]:
    """The times of the ranks with that hash, without those of the first logging step if others were measured."""
    intervals = _measured(records)
    first = next(intervals, {})
    others = itertools.chain([next(intervals, first)], intervals)
    return (times for times in others if hash(frozenset(times)) == ranks)
