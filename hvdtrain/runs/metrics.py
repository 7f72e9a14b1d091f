"""A run's metrics on disk: `metrics.jsonl`, one JSON object per line, how it is written and how it is read."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hvdtrain.runs.console import log
from hvdtrain.system.files import LINES_BYTES, from_json, last_bytes, open_regular
from hvdtrain.system.text import finite_number, to_json

NAME = "metrics.jsonl"
EVALUATIONS = ("validation", "test")
"""Parts of the data. A run with validation data evaluates it after each epoch, and test data only at its end."""
KINDS = ("train", *EVALUATIONS)
"""Of a record: a logging step, or an evaluation."""
LOGGED = "logged"
"""The value of a `train` record that has the figures that a script logged, by name."""
HAPPENED = ("members", "shards", "audit")
"""Kinds of records of what happened to ranks, see `runs.changes`: all of them count, also those of repeated steps."""
EVALUATION_NAMES = frozenset({"kind", "step", "time", "epoch", "loss"})
"""What the record of an evaluation has besides metrics."""
TRAIN_LOSS = "train loss"
CURVES = {
    TRAIN_LOSS: ("train", "loss"),
    "validation loss": ("validation", "loss"),
    "test loss": ("test", "loss"),
    "images/s": ("train", "images_per_s"),
    "learning rate": ("train", "lr"),
}
"""Curves by their names: kind of record, and name of the value. The others are metrics, by their names, of `part`."""
NOT_METRICS = EVALUATION_NAMES | CURVES.keys()
"""Values of an evaluation's record that are no metrics, and names by which curves are not those of metrics."""
MAX_METRICS, MAX_NAME = 50, 100
"""Of more metrics, or of one with a longer name, views do not show the rest."""
CHUNK_BYTES = 1 << 22
MAX_SHOWN_BYTES, MAX_SHOWN = 1 << 28, 1 << 20
"""Of a file with more bytes or records, views do not show the rest. They take as much memory as the file, and some 400
bytes for each record."""
MAX_KINDS = 16
MAX_LINE_BYTES = 1 << 20
"""A longer line is not a record."""
BLOCK_BYTES = 1 << 14
"""What is read first from the end of the file; it holds some fifty records."""
MAX_END_BYTES = 1 << 20
"""What is read at most from the end: an evaluation that is further from it is not found."""

Values = dict[str, Any]
Record = TypeVar("Record")
Reader = TypeVar("Reader", bound="MetricsReader")


class MetricsWriter:
    """Appends to a run's metrics. A record that the disk does not accept is lost, which is logged once.

    track: called with each record as well. Raises OSError if the file cannot be created.
    """

    def __init__(self, folder: Path, track: Callable[[Values], None] = lambda _: None) -> None:
        self._path = folder / NAME
        self._file = open(self._path, "a", buffering=1)  # noqa: SIM115  (closed by close)
        self._lost = 0
        self._track = track

    def write(self, kind: str, step: int, **values: float | str | list[Any] | dict[str, Any] | None) -> None:
        """Write one record of a kind: one of KINDS, `ranks`, `checkpoint`, `audited`, or one of HAPPENED.

        Its `time` is that of writing, in seconds since 1970.
        """
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        try:
            self._file.write(to_json(record) + "\n")
        except OSError as error:
            if not self._lost:
                log.warning("%s cannot be written (%s): training continues without it", self._path, error.strerror)
            self._lost += 1
        self._track(record)

    def close(self) -> None:
        """Close the file, and log how many records were lost."""
        with contextlib.suppress(OSError):  # from writing what is left in its buffer
            self._file.close()
        if self._lost:
            log.warning("%s lacks %d record(s) that the disk did not accept", self._path, self._lost)


class Records(Sequence[dict[str, Any]]):
    """Records as the lines that they are in the file, a tenth of the memory of objects: each is decoded when it is
    asked for."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, place: Any) -> Any:
        return Records(self._lines[place]) if isinstance(place, slice) else decoded(self._lines[place])

    def typed(self, kind: type[Record]) -> Iterator[Record]:
        """Those that are records of a schema, as msgspec decodes them."""
        return filter(None, (decoded(line, kind) for line in self._lines))


def place_of(step: int, epoch: float | None) -> float:
    """Where a record is in training: its epoch, as another batch size renumbers the steps."""
    return step if epoch is None else epoch


class AnyRecord(msgspec.Struct):
    """What each record has; an epoch if it has one."""

    kind: str
    step: int
    epoch: float | None = None


class MetricsReader:
    """The records of a metrics.jsonl in the order of training; each `read` adds what was appended.

    A record takes the place of those of its kind at or after its epoch: those are of steps that a resumed run repeats.
    Steps do not tell which, as another batch size renumbers them. Lines that are not records are skipped, as a killed
    job may leave an incomplete one. limit, most: bytes and records of the file that are read at most. only: the kinds
    of records that are read; by default all.
    """

    def __init__(
        self, path: Path, limit: int = MAX_SHOWN_BYTES, most: int = MAX_SHOWN, only: Sequence[str] = ()
    ) -> None:
        self._path, self._limit, self._most = path, limit, most
        self._marks = [_mark(kind) for kind in only]
        self.error: OSError | None = None
        self._reset(None)

    def _reset(self, identity: tuple[int, int] | None) -> None:
        self._identity, self._offset, self._part = identity, 0, b""
        self._kept: dict[str, list[tuple[float, int, bytes]]] = {}
        """The epoch, the number and the line of each record, by kind."""
        self._number = self._size = 0

    def read(self: Reader) -> Reader:
        """Read what was appended; a file that was replaced or cut is read again. Returns this reader."""
        self.error = None
        try:
            with open_regular(self._path) as file:
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino
                if identity != self._identity or status.st_size < self._offset:
                    self._reset(identity)
                file.seek(self._offset)
                while self._offset < self._limit and self._size < self._most and (content := file.read(CHUNK_BYTES)):
                    self._offset += len(content)
                    self._add_lines(content)
        except OSError as error:
            self.error = error
        return self

    def _add_lines(self, content: bytes) -> None:
        """Add what was appended; a line without its end waits for the rest."""
        *lines, self._part = (self._part + content).split(b"\n")
        for line in lines:
            self._add(line)
        if len(self._part) > MAX_LINE_BYTES:
            self._part = b""

    def _add(self, line: bytes) -> None:
        self._number += 1
        if self._marks and not any(mark in line for mark in self._marks):
            return
        record = decoded(line, AnyRecord)
        if record is None:
            return
        kind, at = record.kind, place_of(record.step, record.epoch)
        if self._size < self._most and (kind in self._kept or len(self._kept) < MAX_KINDS):
            kept = self._kept.setdefault(kind, [])
            before = len(kept)
            while kept and kept[-1][0] >= at and kind not in HAPPENED:
                kept.pop()
            kept.append((at, self._number, line))
            self._size += len(kept) - before

    def of_kind(self, kind: str) -> Records:
        return Records([line for _, _, line in self._kept.get(kind, ())])

    def all(self, kinds: Collection[str] = (), most: int = MAX_SHOWN) -> Records:
        """The records of these kinds, by default of all, in the order in which they were written.

        most: of more, the newest ones.
        """
        chosen = [kept for kind, kept in self._kept.items() if not kinds or kind in kinds]
        numbered = sorted((number, line) for kept in chosen for _, number, line in kept[-most:])
        return Records([line for _, line in numbered[-most:]])

    @property
    def places(self) -> dict[str, float]:
        return {kind: max(kept)[0] for kind, kept in self._kept.items()}

    @property
    def part(self) -> str:
        """The part of the data that the run evaluates while it trains."""
        return next((part for part in EVALUATIONS if part in self._kept), "test")


def metrics_of(record: Values, others: Collection[str] = NOT_METRICS) -> dict[str, float]:
    """The finite metrics of an evaluation's record, or of a result's object `metrics`, by name. others: no metrics."""
    numbers = {name: finite_number(value) for name, value in record.items() if name not in others}
    finite = [(name, number) for name, number in numbers.items() if number is not None and len(name) <= MAX_NAME]
    return dict(finite[:MAX_METRICS])


def logged_of(record: Values) -> dict[str, float]:
    """The finite figures of a `train` record that a script logged, by name."""
    logged = record.get(LOGGED)
    return metrics_of(logged, others=()) if isinstance(logged, dict) else {}


def read(path: Path) -> list[Values]:
    """The records of a metrics.jsonl, see `MetricsReader`. Raises OSError if it cannot be read, or is too large."""
    if os.path.getsize(path) > LINES_BYTES:
        raise OSError(errno.EFBIG, f"larger than {LINES_BYTES >> 20} MiB", str(path))
    reader = MetricsReader(path, LINES_BYTES, LINES_BYTES).read()
    if reader.error:
        raise reader.error
    return list(reader.all(most=LINES_BYTES))


def last_records(path: Path) -> dict[str, Values]:
    """The newest record of each of KINDS, read from the end of the file: long runs are listed as fast as short ones.

    None of a kind that is not near the end. Of evaluations, one is looked for, and the others are there by chance.
    """
    records: dict[str, Values] = {}
    for size in (BLOCK_BYTES, MAX_END_BYTES):
        content = last_bytes(path, size)
        for line in reversed(content.split(b"\n")):
            kind = next((kind for kind in KINDS if kind not in records and _mark(kind) in line), None)
            record = decoded(line) if kind else None
            if kind and isinstance(record, dict) and record.get("kind") == kind:
                records[kind] = record
            if "train" in records and len(records) > 1:
                return records
        if len(content) < size:
            break
    return records


def _mark(kind: str) -> bytes:
    """What lines of a kind contain, as `MetricsWriter` writes them."""
    return f'"kind": "{kind}"'.encode()


def decoded(line: bytes, kind: Any = Any) -> Any:
    """The record of a schema, by default any JSON value, that a line is; None if it is none."""
    try:
        return from_json(line, kind)
    except (ValueError, RecursionError):
        return None
