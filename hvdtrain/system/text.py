"""Text for people, without control characters: known names, sizes, ranks; and JSON for any reader."""

from __future__ import annotations

import difflib
import json
import math
import textwrap
from collections.abc import Iterable
from typing import Any

MIN_WIDTH = 20
"""Of a terminal in which lines are broken between words."""


def printable(text: str) -> str:
    """Text with escapes, such as `\\x1b`, for characters that could control a terminal or that no encoding has."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def did_you_mean(name: str, known: Iterable[str], place: str = "") -> str:
    """` (did you mean X?)` if one of the known names is close to `name`, else an empty string. place: before X."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {place}{close[0]}?)" if close else ""


def last_line(text: str) -> str:
    """The last line that is not empty, of what another program printed, for messages."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def fitted(text: str, width: int, indent: int = 2) -> str:
    """Text in lines of at most `width` columns, broken between words; of the others, each begins after `indent` spaces.

    Text that moves the cursor is left as it is, and a word is not broken.
    """
    if len(text) <= width or width < MIN_WIDTH or not text.isprintable():
        return text
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def format_ranks(ranks: Iterable[int]) -> str:
    """Rank numbers in short form: `0-3, 7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def count_of(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def figure(value: float) -> str:
    """A figure of any size: with four decimals where these say something, else with four digits."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def format_bytes(size: float) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def to_json(value: Any, indent: int | None = None) -> str:
    """The text of a value of dicts, lists, tuples, texts, numbers, True, False and None; one line without `indent`."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def finite_number(value: Any) -> float | None:
    """A value from JSON as a number; None for what is none, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer larger than any float
        return None
