"""Ranges from which a search draws the values of an option: `log:1e-4:1e-1`, `int:8:64`, `float:0:0.5:0.1`."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from hvdtrain.errors import UserError

FORMS = ("float", "int", "log", "logint")
"""How values are drawn: evenly, evenly as integers, and evenly by their logarithms."""
PREFIX = re.compile(r"([A-Za-z]+):(.+)", re.DOTALL)
DIGITS = 6
"""Significant digits of a drawn number: all that matter, in names of runs and tables that can be read."""
REMEDY = (
    "write log:1e-4:1e-1 (evenly by the logarithm), float:0:0.5 (evenly), int:8:64 or logint:8:512 (integers); "
    "float and int may have a step, as int:8:64:8"
)


class Range(NamedTuple):
    """Numbers from `low` to `high`, both included."""

    form: str
    """One of FORMS."""
    low: float
    high: float
    step: float | None = None
    """Distance of two values; None for any number, or any integer."""

    @classmethod
    def parse(cls, text: str, where: str) -> Range | None:
        """The range that a text describes; None for a text that is a value. Raises UserError for an invalid one."""
        match = PREFIX.fullmatch(text)
        if not match or match[1] not in FORMS:
            return None
        form, is_integer = match[1], match[1].endswith("int")
        try:
            low, high, *steps = [float(int(part)) if is_integer else float(part) for part in match[2].split(":")]
        except ValueError:
            raise UserError(
                f"{where}: {text:.80} is no range of {'integers' if is_integer else 'numbers'}", REMEDY
            ) from None
        problem = ""
        if not all(map(math.isfinite, (low, high, *steps))):
            problem = "has an end that is not finite"
        elif low >= high:
            problem = "ends at or below its beginning"
        elif len(steps) > 1 or (steps and (form.startswith("log") or not 0 < steps[0] <= high - low)):
            problem = "has a step that is not possible"
        elif form.startswith("log") and low <= 0:
            problem = "begins at or below 0, which has no logarithm"
        if problem:
            raise UserError(f"{where}: {text:.80} {problem}", REMEDY)
        return cls(form, low, high, *steps)

    @property
    def is_of_integers(self) -> bool:
        return self.form.endswith("int")

    @property
    def is_logarithmic(self) -> bool:
        return self.form.startswith("log")

    def text(self, number: float) -> str:
        """A drawn number as users write it."""
        if self.is_of_integers:
            return str(round(number))
        return str(min(max(float(f"{number:.{DIGITS}g}"), self.low), self.high))

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last number."""
        return self.text(self.low), self.text(self.high)

    def __str__(self) -> str:
        """As users write it."""
        form = "d" if self.is_of_integers else "g"
        numbers = [int(number) if self.is_of_integers else number for number in self[1:] if number is not None]
        return ":".join([self.form, *(f"{number:{form}}" for number in numbers)])
