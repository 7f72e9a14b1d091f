"""TensorBoard's event files."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from hvdtrain.runs.console import log
from hvdtrain.system.rank_info import host_name

FLUSH_S = 10.0
"""How far TensorBoard's display may lag behind."""


class EventsWriter:
    """Writes one event file, and ends it at the first record that the disk does not accept: none after it is readable.

    tensorboardX's SummaryWriter is not used, as its thread dies on a full disk and its caller then waits forever.
    Raises OSError if the file cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        self._path = folder / f"events.out.tfevents.{time.time():.0f}.{host_name()}.{os.getpid()}"
        self._file: RecordWriter | None = RecordWriter(str(self._path))
        self._flushed = 0.0
        self._add(file_version="brain.Event:2")

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Write the values of a step, by name."""
        from tensorboardX.summary import scalar

        for name, value in scalars.items():
            self._add(step=step, summary=scalar(name, value))

    def _add(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        if not self._file:
            return
        now = time.time()
        try:
            self._file.write(Event(wall_time=now, **content).SerializeToString())
            if now - self._flushed > FLUSH_S:
                self._file.flush()
                self._flushed = now
        except OSError as error:
            log.warning("%s cannot be written (%s): training continues without it", self._path, error.strerror)
            self.close()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            if self._file:
                self._file.close()
        self._file = None
