"""Steps and messages of timelines, made up."""

from hvdtrain.runs.timeline.horovod_events import Message
from hvdtrain.system.phases import BACKWARD, DATA, FORWARD, GRADIENTS, UPDATE, Span, StepSpans

MS = 1_000_000
LENGTHS = {DATA.name: 1, FORWARD.name: 2, BACKWARD.name: 4, GRADIENTS.name: 2, UPDATE.name: 1}


def step(number, begin, message="w", **lengths):
    """A step that begins at `begin` (ms), whose gradients are given when its backward ends."""
    parts, at = [], begin * MS
    for name, length in {**LENGTHS, **lengths}.items():
        parts.append(Span(name, at, at + length * MS))
        at += length * MS
    given = next((part.end for part in parts if part.name == BACKWARD.name), at)
    return StepSpans(number, parts, [(message, given)] if message else [])


def sent(begin, end=None, **given):
    """A message, in ms."""
    end = end or begin + 1
    activity = [("GLOO_ALLREDUCE", begin * MS + 10, end * MS - 10)]
    return Message("w", begin * MS, begin * MS, end * MS, {int(k[1:]): v * MS for k, v in given.items()}, activity)
