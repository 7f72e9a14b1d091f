"""A range of steps, as an option gives it: `FIRST:LAST`, from FIRST up to the one before LAST."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvdtrain.errors import UserError

MOST_STEPS = 1000
"""In a range: what is recorded of them is kept in memory, and written into one file."""


@dataclass(frozen=True)
class StepRange:
    """Steps `first` to `last` - 1, counted from 0."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    def __len__(self) -> int:
        return self.last - self.first

    @classmethod
    def parse(cls, text: str, option: str) -> StepRange:
        """The range in the text. Raises UserError, which names the option."""
        found = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text, re.ASCII)
        if not found:
            raise UserError(f"{option} {text}: is not FIRST:LAST", "give two numbers of steps, such as 100:110")
        first, last = map(int, found.groups())
        if first >= last:
            raise UserError(f"{option} {text}: has no step", "LAST is the step after the last one, as in 100:110")
        if last - first > MOST_STEPS:
            raise UserError(f"{option} {text}: has {last - first} steps", f"give at most {MOST_STEPS}")
        return cls(first, last)
