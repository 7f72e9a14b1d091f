"""Lines of JSON in a run's files, kept as they are, and decoded when they are asked for."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec


class Records(Sequence[dict[str, Any]]):
    """Records as the lines that they are in the file, a tenth of the memory of objects: each is decoded when it is
    asked for."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, place: Any) -> Any:
        return Records(self._lines[place]) if isinstance(place, slice) else decoded(self._lines[place])


class LinesByEpoch:
    """The lines of records of one kind, in the order of their epochs, with the number of each.

    keeps_all: whether a record takes the place of none, as one of what happened, also in steps that were repeated.
    """

    def __init__(self, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self.epochs: list[float] = []
        self.numbers = array("q")
        self.lines: list[bytes] = []

    def add(self, epoch: float, number: int, line: bytes) -> int:
        """Add a record in place of those at or after its epoch; how many more there are."""
        before = len(self.lines)
        while self.epochs and self.epochs[-1] >= epoch and not self._keeps_all:
            for column in (self.epochs, self.numbers, self.lines):
                column.pop()
        self.epochs.append(epoch)
        self.numbers.append(number)
        self.lines.append(line)
        return len(self.lines) - before


def decoded(line: bytes) -> Any:
    """The JSON value of a line; None for what is none."""
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):  # such as NaN, which the standard library reads
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None
