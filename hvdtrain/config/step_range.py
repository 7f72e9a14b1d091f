"""A range of steps, as --timeline gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvdtrain.config.option import invalid

MAX_RANGE = 1000
"""In a range of steps: what is recorded of them is kept in memory, and written into one file."""


@dataclass(frozen=True)
class StepRange:
    """Steps `first` to `last` - 1, counted from 0; --timeline has it as FIRST:LAST."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    def __len__(self) -> int:
        return self.last - self.first

    @classmethod
    def parse(cls, text: str) -> StepRange:
        """The range in the text. Raises UserError."""
        match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text, re.ASCII)
        if not match:
            raise invalid("timeline", text, "is not FIRST:LAST", "give two numbers of steps, such as 100:110")
        first, last = map(int, match.groups())
        if first >= last:
            raise invalid("timeline", text, "has no step", "LAST is the step after the last one, as in 100:110")
        if last - first > MAX_RANGE:
            raise invalid("timeline", text, f"has {last - first} steps", f"give at most {MAX_RANGE}")
        return cls(first, last)
