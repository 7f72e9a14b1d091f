"""JSON values in a run's files, of which a reader expects nothing: each may be missing, damaged or hostile."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hvdtrain.system.files import read_json
from hvdtrain.system.text import finite_number, printable

MAX_TEXT = 300
"""Characters of a text that are shown."""
MAX_COUNT = 1 << 53
Count = Annotated[int, msgspec.Meta(ge=0, lt=MAX_COUNT)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Record:
    """A JSON object of a file. A value that is missing, or of another kind than is asked for, is None or empty."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values = values or {}

    @classmethod
    def read(cls, path: Path) -> Record:
        """The object that a file holds; empty if there is none that can be read."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            return cls(value) if isinstance(value := read_json(path), dict) else cls()
        return cls()

    def __bool__(self) -> bool:
        return bool(self.values)

    def number(self, name: str) -> float | None:
        """The finite number of that name."""
        return finite_number(self.values.get(name))

    def count(self, name: str) -> int | None:
        """The integer of that name, 0 or above."""
        value = self.values.get(name)
        return value if type(value) is int and 0 <= value < MAX_COUNT else None

    def text(self, name: str) -> str:
        """The text of that name, without control characters, and cut if it is long."""
        value = self.values.get(name)
        return shown(value) if isinstance(value, str) else ""

    def texts(self) -> dict[str, str]:
        """All values that are text or numbers, as text."""
        return {
            printable(name): as_text(value)
            for name, value in self.values.items()
            if isinstance(value, str | int | float)
        }

    def table(self, name: str) -> Record:
        """The object of that name."""
        value = self.values.get(name)
        return Record(value if isinstance(value, dict) else {})

    def tables(self, name: str) -> list[Record]:
        """The objects in the list of that name."""
        return tables(self.values.get(name))


def tables(values: Any) -> list[Record]:
    """The objects in a JSON list."""
    return [Record(value) for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def shown(value: object, most: int = MAX_TEXT) -> str:
    """A value as text without control characters, cut if it is long."""
    text = str(value)[: most + 1]
    return printable(text[:most] + "…" if len(text) > most else text)


def as_text(value: Any) -> str:
    """A JSON value in a table."""
    return ("yes" if value else "no") if isinstance(value, bool) else printable(str(value))


def seconds_of(started: str) -> float | None:
    """The time at which a run started, as its record has it, in seconds since 1970."""
    try:
        return datetime.strptime(started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, OverflowError):
        return None
