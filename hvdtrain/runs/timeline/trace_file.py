"""The file of a timeline, in Chrome's trace event format, which Perfetto and chrome://tracing open.

Each rank is a process. Its first track is the main thread: steps, and in them their parts. Below, each message of
Horovod has a track: its negotiation, from when this rank gave its gradients until all had, and its allreduce.
"""

from __future__ import annotations

import bisect
from typing import Any

from hvdtrain.runs.timeline.horovod_events import Message, RankSteps, ends_of_waiting

MIN_WIDTH = 1000
"""Distance between the numbers of ranks' main threads, at least."""


class _Track:
    """One track: spans in the order of their beginnings, disjoint, or inside of the latest one that is not inside."""

    def __init__(self, rank: int, number: int, zero: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._rank, self._number, self._zero = rank, number, zero
        self._latest = self._inner = zero

    def add(self, name: str, begin: int, end: int, kind: str, **about: Any) -> None:
        """Add a span after the latest one; what would overlap is cut, and what is then empty left out."""
        begin = max(begin, self._latest)
        self._inner, self._latest = begin, max(begin, end)
        self._write(name, begin, end, kind, about)

    def add_inside(self, name: str, begin: int, end: int, kind: str, **about: Any) -> None:
        """Add a part of the latest span; cut and left out as by `add`."""
        begin, end = max(begin, self._inner), min(end, self._latest)
        self._inner = max(begin, end)
        self._write(name, begin, end, kind, about)

    def _write(self, name: str, begin: int, end: int, kind: str, about: dict[str, Any]) -> None:
        if end > begin:
            times = {"ts": (begin - self._zero) / 1000, "dur": (end - begin) / 1000}
            where = {"pid": self._rank, "tid": self._number}
            self.events.append(
                {"name": name, "cat": kind, "ph": "X", **times, **where, **({"args": about} if about else {})}
            )


def trace(ranks: list[RankSteps], messages: list[Message], about: dict[str, Any]) -> dict[str, Any]:
    """The content of the file; about: what else to tell, as JSON values."""
    zero = min((rank.steps[0].begin for rank in ranks if rank.steps), default=0)
    names = list(dict.fromkeys(message.name for message in messages))
    # Perfetto takes thread 0, and one with the number of a process, for something else, and joins those of one number.
    width = max(MIN_WIDTH, len(names) + 1, len(ranks) + 1)
    events: list[dict[str, Any]] = []
    for rank in ranks:
        main = (rank.rank + 1) * width
        host = f" ({rank.host})" if rank.host else ""
        events += [_named("process", rank.rank, main, f"rank {rank.rank}{host}"), _sorted("process", rank.rank, main)]
        events += [_named("thread", rank.rank, main, "main thread"), _sorted("thread", rank.rank, main)]
        events += _main_thread(rank, main, zero)
        for number, name in enumerate(names, main + 1):
            events += [_named("thread", rank.rank, number, f"Horovod: {name}"), _sorted("thread", rank.rank, number)]
            events += _message_track(rank, number, zero, [message for message in messages if message.name == name])
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _named(kind: str, rank: int, track: int, name: str) -> dict[str, Any]:
    return {"name": f"{kind}_name", "ph": "M", "pid": rank, "tid": track, "args": {"name": name}}


def _sorted(kind: str, rank: int, track: int) -> dict[str, Any]:
    index = rank if kind == "process" else track
    return {"name": f"{kind}_sort_index", "ph": "M", "pid": rank, "tid": track, "args": {"sort_index": index}}


def _main_thread(rank: RankSteps, number: int, zero: int) -> list[dict[str, Any]]:
    track = _Track(rank.rank, number, zero)
    for step in rank.steps:
        track.add(f"step {step.step}", step.begin, step.end, "step", step=step.step)
        for part in step.parts:
            track.add_inside(part.name, part.begin, part.end, "part", step=step.step)
    return track.events


def _message_track(rank: RankSteps, number: int, zero: int, messages: list[Message]) -> list[dict[str, Any]]:
    """The track of one message, in each step, on one rank.

    Horovod tells only rank 0's end of an allreduce; a rank that could continue earlier had it then.
    """
    track, ends = _Track(rank.rank, number, zero), ends_of_waiting(rank)
    for message in messages:
        place = bisect.bisect_right(ends, message.begin)
        end = min([message.end, *ends[place : place + 1]])
        track.add("negotiation", message.given.get(rank.rank, message.negotiation), message.begin, "horovod")
        track.add("allreduce", message.begin, end, "horovod", measured_on="rank 0")
        for name, begin, end in message.activities:
            track.add_inside(name, begin, end, "horovod")
    return track.events
