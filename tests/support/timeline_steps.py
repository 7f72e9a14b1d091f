"""Steps of timelines, made up."""

from hvdtrain.system.phases import BACKWARD, DATA, FORWARD, GRADIENTS, UPDATE, Span, StepSpans

MS = 1_000_000
LENGTHS = {DATA.name: 1, FORWARD.name: 2, BACKWARD.name: 4, GRADIENTS.name: 2, UPDATE.name: 1}


def step(number, begin, **lengths):
    """A step that begins at `begin` (ms). lengths: of its parts (ms); None leaves one out."""
    parts, at = [], begin * MS
    for name, length in {**LENGTHS, **lengths}.items():
        if length is None:
            continue
        parts.append(Span(name, at, at + length * MS))
        at += length * MS
    return StepSpans(number, parts)
