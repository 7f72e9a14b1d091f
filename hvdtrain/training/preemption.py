"""Requests to stop early, as clusters make them: SIGTERM, SIGUSR1, or a file `STOP` in the run's folder."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
FILE = "STOP"
SAME_S = 3.0
"""A signal that comes again within this time is the same request: Slurm signals a rank and its launcher as well."""


class StopRequest:
    """Whether this process was asked to stop; it does so at a step on which all ranks agree."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._signal, self._at = "", 0.0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        """Take the signals over; those of another thread's loop stay as they are."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _: FrameType | None) -> None:
        """The first signal asks; a later one no longer waits."""
        if not self._signal:
            self._signal, self._at = signal.Signals(number).name, time.monotonic()
        elif time.monotonic() - self._at > SAME_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def reason(self) -> str:
        """Who asked: a signal's name or the file's; empty where nobody did."""
        return self._signal or (str(self._file) if os.path.exists(self._file) else "")

    def agreed(self) -> None:
        """All ranks end now: a signal that comes a little later than on another rank asks for what is done already."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        self._before.clear()

    def forget(self) -> None:
        """Remove the file, so that the run can be resumed."""
        self._file.unlink(missing_ok=True)
