"""The file of a timeline, in Chrome's trace event format, which Perfetto and chrome://tracing open.

Each rank is a process, whose track is the main thread: steps, and in them their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hvdtrain.system.phases import StepSpans

MIN_THREAD = 1000
"""Perfetto takes thread 0, and one with the number of a process, for something else, and joins those of one number."""


class RankSteps(NamedTuple):
    """What a rank recorded, by rank 0's clock."""

    rank: int
    host: str
    steps: list[StepSpans]


def trace(ranks: list[RankSteps], about: dict[str, Any]) -> dict[str, Any]:
    """The content of the file; about: what else to tell, as JSON values."""
    zero = min((rank.steps[0].begin for rank in ranks if rank.steps), default=0)
    first_thread = max([MIN_THREAD, *(rank.rank + 1 for rank in ranks)])
    events = [event for rank in ranks for event in _events(rank, first_thread + rank.rank, zero)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _events(rank: RankSteps, thread: int, zero: int) -> Iterator[dict[str, Any]]:
    where = {"pid": rank.rank, "tid": thread}
    title = f"rank {rank.rank} ({rank.host})" if rank.host else f"rank {rank.rank}"
    for kind, name, index in (("process", title, rank.rank), ("thread", "main thread", thread)):
        yield {"name": f"{kind}_name", "ph": "M", **where, "args": {"name": name}}
        yield {"name": f"{kind}_sort_index", "ph": "M", **where, "args": {"sort_index": index}}
    for step in rank.steps:
        spans = [(f"step {step.step}", "step", step.begin, step.end)]
        spans += [(part.name, "part", part.begin, part.end) for part in step.parts]
        for name, category, begin, end in spans:
            times = {"ts": (begin - zero) / 1000, "dur": (end - begin) / 1000}
            yield {"name": name, "cat": category, "ph": "X", **times, **where, "args": {"step": step.step}}
