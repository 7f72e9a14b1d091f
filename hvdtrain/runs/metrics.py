"""A run's metrics on disk: `metrics.jsonl`, one JSON object per line, and TensorBoard events on request."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from hvdtrain.runs.console import log
from hvdtrain.runs.events import EventsWriter
from hvdtrain.system.files import LINES_BYTES, read_limited
from hvdtrain.system.json_text import to_json


class MetricsWriter:
    """Appends to a run's metrics. A record that the disk does not accept is lost, which is logged once.

    Raises OSError if the files cannot be created.
    """

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self._path = folder / "metrics.jsonl"
        self._file = open(self._path, "a", buffering=1)  # noqa: SIM115  (closed by close)
        self._lost = 0
        self._events = EventsWriter(folder / "tensorboard") if tensorboard else None

    def write(self, kind: str, step: int, **values: float | list[Any]) -> None:
        """Write one record of a kind: `train`, `test` or `ranks`."""
        try:
            self._file.write(to_json({"kind": kind, "step": step, **values}) + "\n")
        except OSError as error:
            if not self._lost:
                log.warning("%s cannot be written (%s): training continues without it", self._path, error.strerror)
            self._lost += 1
        if self._events:
            scalars = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, int | float)}
            self._events.write(step, scalars)

    def close(self) -> None:
        """Close the files, and log how many records were lost."""
        with contextlib.suppress(OSError):  # from writing what is left in its buffer
            self._file.close()
        if self._lost:
            log.warning("%s lacks %d record(s) that the disk did not accept", self._path, self._lost)
        if self._events:
            self._events.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl, as written; a record takes the place of those of its kind at or after its epoch.

    Those are of steps that a resumed run repeats. Steps do not tell which: another batch size renumbers them. Lines
    that are not records are skipped: a killed job may leave an incomplete one.
    """
    kept: dict[str, list[tuple[float, int, dict[str, Any]]]] = {}
    for number, line in enumerate(read_limited(path, LINES_BYTES).decode(errors="replace").splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("kind"), str) and isinstance(record.get("step"), int):
            epoch = record.get("epoch")
            at = epoch if isinstance(epoch, int | float) else record["step"]
            of_kind = kept.setdefault(record["kind"], [])
            while of_kind and of_kind[-1][0] >= at:
                of_kind.pop()
            of_kind.append((at, number, record))
    records = [one for of_kind in kept.values() for one in of_kind]
    return [record for _, _, record in sorted(records, key=lambda one: one[1])]
