"""What the ranks have recorded, by one clock, and when each gave its gradients to Horovod."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from hvdtrain.runs.timeline.horovod_events import Message
from hvdtrain.system.phases import GRADIENTS, StepSpans


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
        for name, at in (one for step in rank.steps for one in step.enqueued):
            recorded.setdefault(name, []).append(at)
        for times in recorded.values():
            times.sort()
        waits = [part.begin for step in rank.steps for part in step.parts if part.name == GRADIENTS.name]
        previous: dict[str, int] = {}
        for message in messages:
            times = recorded.get(message.name, waits)
            found = bisect.bisect_right(times, message.begin + error_ns)
            if found and times[found - 1] >= previous.get(message.name, times[0]):
                message.given[rank.rank] = times[found - 1]
            previous[message.name] = message.begin


def ends_of_waiting(rank: RankSteps) -> list[int]:
    """When a rank had the gradients of all ranks, in each step in which it waited for them."""
    return [part.end for step in rank.steps for part in step.parts if part.name == GRADIENTS.name]
