"""A run's metrics on disk: `metrics.jsonl`, one JSON object per line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdtrain.runs.console import log
from hvdtrain.runs.record_list import RecordList
from hvdtrain.system.files import LINES_BYTES, read_limited
from hvdtrain.system.text import to_json


class MetricsWriter:
    """Appends to a run's metrics. A record that the disk does not accept is lost, which is logged once.

    track: called with each record as well. Raises OSError if the file cannot be created.
    """

    def __init__(self, folder: Path, track: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self._path = folder / "metrics.jsonl"
        self._file = open(self._path, "a", buffering=1)  # noqa: SIM115  (closed by close)
        self._lost = 0
        self._track = track

    def write(self, kind: str, step: int, **values: float | list[Any] | None) -> None:
        """Write one record of a kind: `train`, `test` or `ranks`; `time` is that of writing, since the epoch."""
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


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl, without those of steps that a resumed run repeats (see `RecordList`)."""
    records = RecordList()
    for line in read_limited(path, LINES_BYTES).decode(errors="replace").splitlines():
        records.add(line)
    return records.all()
