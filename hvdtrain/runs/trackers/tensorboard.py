"""TensorBoard: a run's records in event files, in the folder `tensorboard` of the run's folder."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from hvdtrain.runs.console import log
from hvdtrain.runs.trackers import Tracker, scalars
from hvdtrain.system.rank_info import host_name

FLUSH_S = 10.0
"""How far TensorBoard's display may lag behind."""


class TensorBoard(Tracker):
    """Writes one event file, and ends it at the first record that the disk does not accept: none after it is readable.

    tensorboardX's SummaryWriter is not used, as its thread dies on a full disk and its caller then waits forever.
    """

    def start(self, run_id: str, config: dict[str, Any]) -> None:
        folder = Path(config["folder"], "tensorboard")
        folder.mkdir(exist_ok=True)
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{host_name()}.{os.getpid()}"
        self._file: RecordWriter | None = RecordWriter(str(self._path))
        self._flushed = 0.0
        self._add(file_version="brain.Event:2")
        # TensorBoard no longer shows later steps of older files.
        self._add(step=config["step"] + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, record: dict[str, Any]) -> None:
        for name, value in scalars(record).items():
            self._add(record.get("time"), step=record["step"], summary=scalar(name, value))

    def end(self, status: str) -> None:
        try:
            if self._file:
                self._file.flush()
        except OSError as error:
            self._warn(error)
        self._close()

    def _add(self, at: float | None = None, **content: Any) -> None:
        """Write an event. at: seconds since the epoch; None for now."""
        if not self._file:
            return
        now = time.time()
        try:
            self._file.write(Event(wall_time=at or now, **content).SerializeToString())
            if now - self._flushed > FLUSH_S:
                self._file.flush()
                self._flushed = now
        except OSError as error:
            self._warn(error)
            self._close()

    def _warn(self, error: OSError) -> None:
        log.warning("%s cannot be written (%s): training continues without it", self._path, error.strerror)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self._file:
                self._file.close()
        self._file = None
