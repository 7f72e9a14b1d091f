"""Text for messages: text from outside without control characters, names that are known, sizes, numbers of ranks."""

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


def last_line(text: str) -> str:
    """The last line that is not empty, of what another program printed, for messages."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def format_ranks(ranks: Iterable[int]) -> str:
    """Rank numbers in short form: `0-3, 7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def format_bytes(size: float) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
