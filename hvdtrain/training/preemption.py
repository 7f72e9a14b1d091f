"""Requests to stop early, as clusters send them: SIGTERM, SIGUSR1, or a file `STOP` in the run's folder."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
FILE = "STOP"
SAME_REQUEST_S = 3.0
"""A signal repeated within this time is the same request: Slurm signals a rank and its launcher as well."""


class StopRequest:
    """Whether this process was asked to stop. A request waits for a step at which all ranks stop together."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._signal, self._received_at = "", 0.0
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        """Install the signal handlers; Python allows that in the main thread only."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Record the first signal; end at once at a second request."""
        if not self._signal:
            self._signal, self._received_at = signal.Signals(number).name, time.monotonic()
        elif time.monotonic() - self._received_at > SAME_REQUEST_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def reason(self) -> str:
        """The signal's name or the path of the file; empty if there is no request."""
        return self._signal or (str(self._file) if os.path.exists(self._file) else "")

    def ignore_signals(self) -> None:
        """Ignore signals from now on: all ranks are stopping, and one that arrives later asks for the same."""
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)
        self._handlers.clear()

    def remove_file(self) -> None:
        """Remove the file STOP, so that the run can be resumed."""
        self._file.unlink(missing_ok=True)
