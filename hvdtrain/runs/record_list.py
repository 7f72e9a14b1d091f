"""The records of a metrics.jsonl in the order of training, from its lines in the order of writing."""

from __future__ import annotations

import json
from typing import Any

Record = dict[str, Any]


class RecordList:
    """Records that are added line by line.

    A record takes the place of those of its kind at or after its epoch: those are of steps that a resumed run repeats.
    Steps do not tell which, as another batch size renumbers them.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[float, int, Record]]] = {}
        self._number = 0

    def add(self, line: str | bytes) -> None:
        """Add a line of the file; one that is not a record is skipped, as a killed job may leave an incomplete one."""
        try:
            self.add_value(json.loads(line))
        except (ValueError, RecursionError):
            self._number += 1

    def add_value(self, record: Any) -> None:
        """Add the JSON value of a line; one that is not a record is also skipped."""
        self._number += 1
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            return
        if not isinstance(record.get("step"), int):
            return
        epoch = record.get("epoch")
        at = epoch if type(epoch) is float or isinstance(epoch, int | float) else record["step"]
        of_kind = self._kept.setdefault(record["kind"], [])
        while of_kind and of_kind[-1][0] >= at:
            of_kind.pop()
        of_kind.append((at, self._number, record))

    def of_kind(self, kind: str) -> list[Record]:
        """The records of one kind: `train`, `test` or `ranks`."""
        return [record for _, _, record in self._kept.get(kind, [])]

    def all(self) -> list[Record]:
        """The records of all kinds, in the order in which they were written."""
        records = [one for of_kind in self._kept.values() for one in of_kind]
        return [record for _, _, record in sorted(records, key=lambda one: one[1])]
