"""What chance alone does to a share of test rows."""

from __future__ import annotations

import math
from typing import NamedTuple

Z = 1.959964
"""Of 95 %, two-sided."""


class Interval(NamedTuple):
    """A range of values."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high

    def text(self, form: str) -> str:
        """`low to high`; form: a format such as `.4f`."""
        return f"{self.low:{form}} to {self.high:{form}}"


def wilson(share: float | None, rows: int | None) -> Interval | None:
    """The 95 % score interval of a share of so many rows; None without both.

    Wilson, Probable inference, the law of succession, and statistical inference, JASA 22(158), 1927.
    """
    if share is None or not rows or not 0 <= share <= 1:
        return None
    center = share + Z**2 / (2 * rows)
    half = Z * math.sqrt(share * (1 - share) / rows + (Z / (2 * rows)) ** 2)
    scale = 1 + Z**2 / rows
    return Interval(max((center - half) / scale, 0.0), min((center + half) / scale, 1.0))
