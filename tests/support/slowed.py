"""A rank that is slower than the others."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def slowed(pid: int, stopped_s: float, running_s: float) -> Iterator[None]:
    """Stop a process and let it run, in turns, until the end of the block or of the process."""
    ended = threading.Event()

    def stop_and_continue() -> None:
        while not ended.is_set():
            for number, seconds in ((signal.SIGSTOP, stopped_s), (signal.SIGCONT, running_s)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                time.sleep(seconds)

    thread = threading.Thread(target=stop_and_continue)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
