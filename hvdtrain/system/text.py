"""Text from outside: shown without control characters, and compared with the names that are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """Text with escapes, such as `\\x1b`, for characters that could control a terminal or that no encoding has."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` if one of the known names is close to `name`, else an empty string."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""
