"""When checkpoints are due, as --checkpoint-every says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvdtrain.config.option import invalid, numbers, option

SECONDS = "s"
"""The unit of a time; a number without it is of steps."""


@dataclass(frozen=True)
class Intervals:
    """Steps and seconds between checkpoints; 0 for none by steps, or by time."""

    steps: int = option(0, minimum=0)
    seconds: float = option(60.0, minimum=0)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Intervals:
        """The last number of steps and the last time in the texts. Raises UserError."""
        remedy = "give steps, such as 100, or seconds, such as 60s"
        given: dict[str, Any] = {}
        for text in texts:
            field, number = "seconds" if text.endswith(SECONDS) else "steps", text.removesuffix(SECONDS)
            if not number:
                raise invalid("checkpoint_every", repr(text), "has no number", remedy)
            given |= numbers(cls, "checkpoint_every", text, [number], (field,), remedy)
        return cls(**given)
