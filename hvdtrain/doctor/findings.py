"""What a check finds: a status, one sentence, and how to fix it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Status = Literal["ok", "warn", "fail"]
STATUSES: tuple[Status, ...] = ("ok", "warn", "fail")
"""From best to worst."""


class Finding(NamedTuple):
    """One result of a check.

    text: what was found, one sentence without a final period.
    remedy: for `warn` and `fail`, the command or change that fixes it; empty for `ok`.
    """

    status: Status
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", text)


def warn(text: str, remedy: str) -> Finding:
    """Jobs run, but slowly or only in some configurations."""
    return Finding("warn", text, remedy)


def fail(text: str, remedy: str) -> Finding:
    """Jobs fail, or compute something else than intended."""
    return Finding("fail", text, remedy)


def first_line(text: str, limit: int = 200) -> str:
    """The first line of `text` that is not blank, cut to `limit` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
