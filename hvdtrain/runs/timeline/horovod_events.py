"""Reads the timeline that Horovod's rank 0 writes: when each message was negotiated, and when it was combined; and when
each rank gave its gradients of it, by what the ranks recorded.

Horovod writes events of tensors. The tensors of a group, whose gradients share a message, have names that end in
`_1of4`, `_2of4` and so on: here they are one message. The file may end anywhere, as after a crash or on a full disk,
and names are written into it without escaping: whatever is not an event is skipped.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.system.files import read_limited
from hvdtrain.system.phases import GRADIENTS, StepSpans

MAX_BYTES = 1 << 28
"""Of Horovod's file that are read."""
NEGOTIATE = "NEGOTIATE_"
COMBINING = {"ALLREDUCE", "ADASUM"}
"""What Horovod calls the operations that combine gradients."""
GROUP_SUM = re.compile(r"hvdtrain[._]sum[._]\d+|HorovodAllreduce")
"""Names of the messages of `Group.sum`, with their sizes; the second one is TensorFlow's."""
PREFIXES = re.compile(r"^(.*/)?((horovod_)?(grouped_)?allreduce\.|Horovod(Grouped)?Allreduce_)")
PART = re.compile(r"_\d{1,6}of\d{1,6}$")
"""Of the name of a tensor: what it is within its group."""


@dataclass
class Message:
    """One allreduce, of the gradients of one group in one step; in ns of rank 0's clock."""

    name: str
    negotiation: int
    """When the first rank gave its gradients."""
    begin: int
    """When all had, and it began."""
    end: int = 0
    given: dict[int, int] = field(default_factory=dict)
    """When a rank gave its gradients, by rank. Horovod writes that, as seen by rank 0, for the first time of a message
    only; later, ranks find out in one exchange whether all have the gradients (the response cache)."""
    activities: list[tuple[str, int, int]] = field(default_factory=list)
    """Its parts, such as MEMCPY_IN_FUSION_BUFFER and MPI_ALLREDUCE: name, begin and end; in order, not overlapping."""


class HorovodFile:
    """The events in the file of Horovod's rank 0. Raises OSError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._events = list(events(read_limited(path, MAX_BYTES).decode(errors="replace")))

    def messages(self, start: int) -> list[Message]:
        """The complete messages with gradients, in the order in which they began.

        start: when Horovod's clock was 0, in ns of rank 0's clock.
        """
        return [message for message in messages(self._events, start) if not GROUP_SUM.fullmatch(message.name)]

    def start_of_clock(self, epoch: int, sums: list[tuple[int, int]]) -> int | None:
        """When Horovod's clock was 0, in ns of rank 0's clock; None if the file does not tell.

        It says that in microseconds since the epoch, by a clock that may have been set since. hvdtrain's own allreduces
        tell whether that is so.

        epoch: when the epoch began by rank 0's clock, in ns. sums: when each of the first hvdtrain.sum in the file
        began and ended on rank 0.
        """
        said = [epoch + micros * 1000 for event in self._events[:1] if (micros := _start_micros(event)) is not None]
        marks = [message for message in messages(self._events, 0) if GROUP_SUM.fullmatch(message.name)][: len(sums)]
        if len(marks) < len(sums) or not sums:
            return said[0] if said else None
        least = max(begin - mark.begin for (begin, _), mark in zip(sums, marks, strict=True))
        most = min(end - mark.end for (_, end), mark in zip(sums, marks, strict=True))
        return min(max(said[0], least), most) if said else (least + most) // 2


def _start_micros(event: dict[str, Any]) -> int | None:
    arguments = event.get("args")
    micros = arguments.get("start_time_since_epoch_in_micros") if isinstance(arguments, dict) else None
    return micros if type(micros) is int and abs(micros) < 1 << 60 else None


def events(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in the text, as far as they are complete."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            event, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        at = end
        if isinstance(event, dict):
            yield event


def messages(file_events: Iterable[dict[str, Any]], start: int) -> list[Message]:
    """The complete messages of these events; `start` as for `HorovodFile.messages`."""
    tensors: dict[int, _Tensor] = {}
    for event in file_events:
        pid, phase = event.get("pid"), event.get("ph")
        if type(pid) is not int:
            continue
        if phase == "M":
            with contextlib.suppress(KeyError, TypeError):
                if isinstance(event["args"]["name"], str):
                    tensors[pid] = _Tensor(message_name(event["args"]["name"]))
        elif pid in tensors and type(event.get("ts")) is int and abs(event["ts"]) < 1 << 53:
            tensors[pid].add(str(phase), str(event.get("name") or "unnamed"), start + event["ts"] * 1000)
    return _joined([message for tensor in tensors.values() for message in tensor.done])


def message_name(tensor: str) -> str:
    """What is common to the names of the tensors of a message, without Horovod's own words."""
    return PART.sub("", PREFIXES.sub("", tensor))


class _Tensor:
    """The events of one tensor, which Horovod writes in the order of their times: its messages, one after the other."""

    def __init__(self, name: str) -> None:
        self.done: list[Message] = []
        self._name = name
        self._negotiation: int | None = None
        self._given: dict[int, int] = {}
        self._open: list[tuple[str, int]] = []
        self._activities: list[tuple[str, int, int]] = []
        self._latest = -(1 << 62)

    def add(self, phase: str, name: str, at: int) -> None:
        at = self._latest = max(at, self._latest)
        if phase == "B":
            self._begin(name, at)
        elif phase == "E":
            self._end(at)
        elif phase == "X" and name.isascii() and name.isdecimal() and len(name) < 10 and self._negotiation is not None:
            self._given.setdefault(int(name), at)

    def _begin(self, name: str, at: int) -> None:
        if name.startswith(NEGOTIATE):
            self._negotiation, self._given, self._open, self._activities = at, {}, [], []
        self._open.append((name, at))

    def _end(self, at: int) -> None:
        if not self._open:
            return
        name, begin = self._open.pop()
        if name.startswith(NEGOTIATE):
            return
        if self._open:
            if len(self._open) == 1:
                self._activities.append((name, begin, at))
            return
        negotiation = begin if self._negotiation is None else self._negotiation
        if name in COMBINING:
            self.done.append(Message(self._name, negotiation, begin, at, self._given, self._activities))
        self._negotiation, self._given, self._activities = None, {}, []


def _joined(tensors: list[Message]) -> list[Message]:
    """One message for the tensors of a group in a step."""
    by_name: dict[str, list[Message]] = {}
    for tensor in sorted(tensors, key=lambda message: message.begin):
        of_name = by_name.setdefault(tensor.name, [])
        if of_name and tensor.begin < of_name[-1].end:  # another tensor of the same message
            _join(of_name[-1], tensor)
        else:
            of_name.append(tensor)
    return sorted((message for of_name in by_name.values() for message in of_name), key=lambda message: message.begin)


def _join(into: Message, other: Message) -> None:
    into.negotiation = min(into.negotiation, other.negotiation)
    into.end = max(into.end, other.end)
    for rank, at in other.given.items():
        into.given[rank] = max(at, into.given.get(rank, at))
    merged = {name: (begin, end) for name, begin, end in into.activities}
    for name, begin, end in other.activities:
        if name in merged:
            merged[name] = (min(begin, merged[name][0]), max(end, merged[name][1]))
        else:
            merged[name] = (begin, end)
    into.activities, latest = [], into.begin
    for name, (begin, end) in sorted(merged.items(), key=lambda item: item[1]):
        begin, end = max(begin, latest), min(max(end, latest), into.end)
        if end > begin:
            into.activities.append((name, begin, end))
            latest = end


class RankSteps(NamedTuple):
    """What a rank recorded, by rank 0's clock."""

    rank: int
    host: str
    steps: list[StepSpans]


def add_given(messages: Sequence[Message], ranks: Sequence[RankSteps], error_ns: float = 0) -> None:
    """Add to the messages, which are in order, when each rank gave its gradients: before the allreduce began.

    A rank that did not record this for a message gave them when it began to wait for all gradients. error_ns: how exact
    the ranks' clocks are known.
    """
    for rank in ranks:
        recorded: dict[str, list[int]] = {}
        for name, at in (message for step in rank.steps for message in step.enqueued):
            recorded.setdefault(name, []).append(at)
        for times in recorded.values():
            times.sort()
        waits = [part.begin for step in rank.steps for part in step.parts if part.name == GRADIENTS.name]
        previous: dict[str, int] = {}
        for message in messages:
            times = recorded.get(message.name, waits)
            number = bisect.bisect_right(times, message.begin + error_ns)
            if number and times[number - 1] >= previous.get(message.name, times[0]):
                message.given[rank.rank] = times[number - 1]
            previous[message.name] = message.begin


def ends_of_waiting(rank: RankSteps) -> list[int]:
    """When a rank had the gradients of all ranks, in each step in which it waited for them."""
    return [part.end for step in rank.steps for part in step.parts if part.name == GRADIENTS.name]
