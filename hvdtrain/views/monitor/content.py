"""Values from a run's files, of which a reader expects nothing: a missing, damaged or hostile value is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hvdtrain.system.files import open_regular, read_json
from hvdtrain.system.text import finite_number, printable

LONGEST_TEXT = 300
"""Characters of a text that are shown."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none that can be read."""
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number(values: dict[str, Any], name: str) -> float | None:
    """The finite number of that name."""
    return finite_number(values.get(name))


def count(values: dict[str, Any], name: str, default: int = 0) -> int:
    """The integer of that name, 0 or above."""
    value = values.get(name)
    return value if type(value) is int and 0 <= value < 1 << 53 else default


def text(values: dict[str, Any], name: str, default: str = "") -> str:
    """The text of that name, without control characters, and cut if it is long."""
    value = values.get(name)
    return shown(value) if isinstance(value, str) else default


def shown(value: object, most: int = LONGEST_TEXT) -> str:
    """A value as text without control characters, cut if it is long."""
    found = str(value)[: most + 1]
    return printable(found[:most] + "…" if len(found) > most else found)


def table(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The object of that name; empty if it is none."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def numbers(values: dict[str, Any], name: str) -> list[float]:
    """The list of finite numbers of that name; empty if it is none."""
    found = values.get(name)
    if not isinstance(found, list):
        return []
    parsed = list(map(finite_number, found))
    return [one for one in parsed if one is not None] if None not in parsed else []


def last_bytes(path: Path, most: int) -> bytes:
    """The end of a file, at most that many bytes; empty where it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - most, 0))
            return file.read(most)
    except OSError:
        return b""


def last_lines(path: Path, most: int) -> list[str]:
    """The lines in the last `most` bytes of a file; the first may be a part of one."""
    return last_bytes(path, most).decode(errors="replace").splitlines()
