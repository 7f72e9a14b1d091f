"""The curves of a run: its records as points, read once, and then only what was appended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hvdtrain.runs.record_list import RecordList
from hvdtrain.system.files import open_regular
from hvdtrain.views.monitor.content import number, numbers

FIGURES = {
    "loss": ("train", "loss"),
    "test loss": ("test", "loss"),
    "accuracy": ("test", "accuracy"),
    "images/s": ("train", "images_per_s"),
    "learning rate": ("train", "lr"),
}
"""Curves by their names: kind of record, and name of the value."""
CHUNK_BYTES = 1 << 22
MOST_BYTES = 1 << 28
"""Of a larger file, the rest is not shown."""
INF = float("inf")
MOST_LINE = 1 << 20
"""A longer line is not a record."""


class Curve(NamedTuple):
    """The points of a curve, in the order of training."""

    epochs: list[float]
    steps: list[int]
    values: list[float]

    def __bool__(self) -> bool:
        return bool(self.values)


class CurveReader:
    """Follows a run's metrics.jsonl; a file that was replaced or cut is read again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.jsonl"
        self._reset(None)

    def _reset(self, identity: tuple[int, int] | None) -> None:
        self.records = RecordList()
        self._identity, self._offset, self._part = identity, 0, b""

    def read(self) -> None:
        """Read what was appended; a line without its end waits for the rest."""
        try:
            with open_regular(self._path) as file:
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino
                if identity != self._identity or status.st_size < self._offset:
                    self._reset(identity)
                file.seek(self._offset)
                while self._offset < MOST_BYTES and (content := file.read(CHUNK_BYTES)):
                    self._offset += len(content)
                    self._add(content)
        except OSError:
            return

    def _add(self, content: bytes) -> None:
        *lines, self._part = (self._part + content).split(b"\n")
        if len(self._part) > MOST_LINE:
            self._part = b""
        for line in lines:
            try:
                self.records.add_value(msgspec.json.decode(line))
            except (ValueError, RecursionError):  # such as NaN, which the standard library reads
                self.records.add(line)

    def curve(self, name: str) -> Curve:
        """One of FIGURES, or another value of `test` records by its name."""
        kind, key = FIGURES.get(name, ("test", name))
        records = self.records.of_kind(kind)
        columns = _column(records, "epoch"), [record["step"] for record in records], _column(records, key)
        rows = [row for row in zip(*columns, strict=True) if row[0] is not None and row[2] is not None]
        return Curve(*map(list, zip(*rows, strict=True))) if rows else Curve([], [], [])

    def parts(self, most: int = 1 << 62) -> list[dict[str, Any]]:
        """Of each logging step that measured them: step, epoch, and the seconds of each rank by part.

        most: of more logging steps, every second, third, ... up to the newest is taken.
        """
        found, records = [], self.records.of_kind("train")
        for record in records[::-1][:: max(-(-len(records) // most), 1)][::-1]:
            parts = {name: numbers(record, name) for name in ("compute_s", "communicate_s", "data_s")}
            if parts["compute_s"]:
                found.append({"step": record["step"], "epoch": number(record, "epoch"), **parts})
        return found


def _column(records: list[dict[str, Any]], name: str) -> list[float | None]:
    """The finite numbers of that name; quicker than `number` for what nearly all of them are."""
    values = [record.get(name) for record in records]
    return [one if type(one) is float and -INF < one < INF else number({name: one}, name) for one in values]


def thinned(curve: Curve, most: int) -> Curve:
    """At most about `most` points, with the least and the greatest value of each group of neighbours kept."""
    size = len(curve.values)
    if size <= most:
        return curve
    groups = max(most // 2, 1)
    kept: list[int] = []
    for group in range(groups):
        first = group * size // groups
        values = curve.values[first : (group + 1) * size // groups]
        kept += sorted({first + values.index(min(values)), first + values.index(max(values))})
    kept = sorted({0, *kept, size - 1})
    return Curve([curve.epochs[i] for i in kept], [curve.steps[i] for i in kept], [curve.values[i] for i in kept])
