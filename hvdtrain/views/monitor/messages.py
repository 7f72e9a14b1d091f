"""What the ranks of a run wrote to their logs, joined in the order of time; and their stacks after a hang."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from hvdtrain.views.monitor.content import last_lines, shown

LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ([A-Z]{1,10}) (.*)")
LOG = re.compile(r"rank-(\d{1,6})\.log")
STACKS = re.compile(r"stacks-rank-(\d{1,6})\.txt")
LAST_BYTES = 1 << 13
"""What is read of each log for the last messages."""
MOST_RANKS = 64
"""Of more ranks, only the first ones' messages are joined."""
FILE_BYTES = 1 << 18
"""What is shown of one log or of one rank's stacks: its end."""


class Message(NamedTuple):
    """One message of a rank."""

    time: str
    """Date and time by that host's clock, `2026-05-01 14:03:11`."""
    rank: int
    level: str
    text: str


def last_messages(folder: Path, most: int, least_level: str = "") -> list[Message]:
    """The newest messages of all ranks, oldest first. least_level: `WARNING` leaves out what is only information."""
    found: list[Message] = []
    for rank in log_ranks(folder)[:MOST_RANKS]:
        for line in last_lines(folder / "logs" / f"rank-{rank}.log", LAST_BYTES):
            match = LINE.fullmatch(line)
            if match and not (least_level and match[2] in ("INFO", "DEBUG")):
                found.append(Message(match[1], rank, match[2], shown(match[3])))
    return sorted(found, key=lambda one: one.time)[-most:]


def log_ranks(folder: Path) -> list[int]:
    """The ranks that have a log."""
    return _ranks(folder / "logs", LOG)


def stack_ranks(folder: Path) -> list[int]:
    """The ranks of which there are stacks, as the watchdog writes them."""
    return _ranks(folder / "heartbeats", STACKS)


def _ranks(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def log_text(folder: Path, rank: int) -> list[str]:
    """The end of a rank's log."""
    return [shown(line, 2000) for line in last_lines(folder / "logs" / f"rank-{rank}.log", FILE_BYTES)]


def stack_text(folder: Path, rank: int) -> list[str]:
    """A rank's stacks."""
    return [shown(line, 2000) for line in last_lines(folder / "heartbeats" / f"stacks-rank-{rank}.txt", FILE_BYTES)]
