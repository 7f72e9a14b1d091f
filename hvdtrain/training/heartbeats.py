"""The heartbeats of all ranks, in files of the run's folder: each rank writes its own, and after a hang reads all."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdtrain.system.files import read_json, write_atomically
from hvdtrain.system.running_time import TICK_S, RunningTime
from hvdtrain.training.hang_report import Heartbeat, Observation

HEARTBEAT_S = TICK_S
SILENT_S = 4.0
"""A rank whose heartbeat does not change for this long does not run."""
SILENT_WRITES = 3
"""In a slow folder, a rank must be silent for as long as this number of heartbeats take."""


class Heartbeats:
    """Writes this rank's heartbeat twice a second in a thread of its own, so that a slow folder delays nothing else.

    current: makes the heartbeat with a given number.
    """

    def __init__(self, folder: Path, rank: int, size: int, current: Callable[[int], Heartbeat]) -> None:
        self._folder, self._rank, self._size, self._current = folder, rank, size, current
        self._thread = threading.Thread(target=self._write_until_ended, name="heartbeat", daemon=True)
        self._ended = threading.Event()
        self._number = 0
        self._began: float | None = None
        """When the heartbeat that is being written was begun; monotonic, in s."""
        self._write_s = 0.0
        """How long the latest heartbeat took."""

    def start(self) -> None:
        """Write the first heartbeat, then the others in the thread."""
        with contextlib.suppress(OSError):  # without the folder, a hang still ends the job
            self._folder.mkdir(exist_ok=True)
        self._write()
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """End the thread; a folder that does not respond is not waited for any longer than that."""
        self._ended.set()
        self._thread.join(within_s)

    @property
    def blocked_s(self) -> float:
        """For how long a heartbeat has been waiting for the folder."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def silent_s(self) -> float:
        """How long a heartbeat must stay the same for its rank not to run: longer in a slow folder."""
        return max(SILENT_S, SILENT_WRITES * max(self._write_s, self.blocked_s))

    def observe(self, least_s: float = 0.0) -> Observation:
        """Read all heartbeats until those of the other ranks have changed, or for `silent_s`, `least_s` or longer."""
        clock, first = RunningTime(), self._read()
        latest, same = first, set(first) - {self._rank}
        while same and clock.seconds < max(self.silent_s, least_s):
            time.sleep(HEARTBEAT_S)
            clock.tick()
            latest = {**latest, **self._read(same)}
            same = {rank for rank in same if latest[rank] == first[rank]}
        return Observation({**latest, self._rank: self._current(self._number)}, frozenset(same))

    def _write_until_ended(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            self._began = time.monotonic()
            self._write()
            self._write_s, self._began = self.blocked_s, None

    def _write(self) -> None:
        self._number += 1
        content = json.dumps(self._current(self._number)._asdict())
        with contextlib.suppress(OSError):  # the training thread reports a full disk
            write_atomically(self._path(self._rank), content)

    def _read(self, ranks: set[int] | None = None) -> dict[int, Heartbeat]:
        """The heartbeats of these ranks, by default of all, as far as their files have one."""
        beats = {}
        for rank in range(self._size) if ranks is None else ranks:
            with contextlib.suppress(OSError, ValueError, TypeError):
                values: dict[str, Any] = read_json(self._path(rank))
                beats[rank] = Heartbeat(**values)
        return beats

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"
