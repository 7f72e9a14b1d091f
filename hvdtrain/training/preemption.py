"""Requests to stop early: SIGTERM or SIGUSR1 from a cluster, Ctrl-C, or a file `STOP` in the run's folder."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hvdtrain.errors import INTERRUPTED, Stopped
from hvdtrain.interfaces import Group
from hvdtrain.system.processes import is_second_request

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
FILE = "STOP"
FINISHING = "all steps are done, and the result is being written"


class StopRequest:
    """Whether this process was asked to stop. A request waits for a step at which all ranks stop together."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file, self._rank = folder / FILE, rank
        self._received: dict[int, float] = {}
        """When each signal arrived first, in the order of arrival; monotonic, in s."""
        self._next = "stopping after this step"
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        """Install the signal handlers; Python allows that in the main thread only."""
        if threading.current_thread() is threading.main_thread():
            # Where the parent has this process ignore Ctrl-C, as shells do in the background, that stays.
            numbers = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._handlers = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Record the first signal of each kind; end at once at a second request."""
        now = time.monotonic()
        first = self._received.setdefault(number, now)
        if is_second_request(number, now - first):
            if number == signal.SIGINT:
                self._say("interrupted")
                os._exit(INTERRUPTED)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif now == first and self._rank == 0:
            if number == signal.SIGINT:
                self._say(f"{self._next}; press Ctrl-C again to end at once")
            elif self._next == FINISHING:
                self._say(FINISHING)

    def _say(self, text: str) -> None:
        """Print a line; `print` may not be used in a signal handler, which may interrupt another `print`."""
        os.write(2, f"hvdtrain: rank {self._rank}: {text}\n".encode())

    def reason(self) -> str:
        """The first signal's name or the path of the file; empty if there is no request."""
        for number in self._received:
            return signal.Signals(number).name
        return str(self._file) if os.path.exists(self._file) else ""

    def finishing(self) -> None:
        """The last step is done: a request to stop no longer has an effect, as the result is written next."""
        self._next = FINISHING

    def stopping(self) -> None:
        """All ranks are stopping: until the process ends, ignore signals that ask for the same."""
        self._next = "the checkpoint is being written"
        for number in set(self._handlers) - {signal.SIGINT}:
            signal.signal(number, signal.SIG_IGN)
            del self._handlers[number]

    def raise_stopped(self, group: Group, rank: int, folder: Path, step: int) -> NoReturn:
        """Raise Stopped on all ranks, after the checkpoint of this step, because `rank` was asked to stop."""
        reason = group.gather(self.reason())[rank]
        if group.rank == 0:
            self._file.unlink(missing_ok=True)  # so that the run can be resumed
        raise Stopped(
            f"rank {rank} was asked to stop by {reason}; the checkpoint of step {step} is written",
            f"resume with --resume {folder}",
            rank=rank,
            step=step,
        )
