"""Signals to the launcher, from its start to its end: also between attempts, and while its last lines are written."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

from hvdtrain.errors import Stopped
from hvdtrain.system.processes import STOP_SIGNALS, is_second_request


def interrupted_status(number: int) -> int:
    """The exit status of a job that a signal ended before its ranks could write a checkpoint.

    SIGUSR1 announces a time limit: as after a checkpoint, 75 says that the job can be started again.
    """
    return Stopped.exit_status if number == signal.SIGUSR1 else 128 + number


class Signals:
    """Delivers signals to whoever handles them now; those that arrive in between wait for the next one."""

    def __init__(self) -> None:
        """Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._first: dict[int, float] = {}
        """When each signal was received first: monotonic, in s."""
        self._pending: list[int] = []
        self._listener: Callable[[int, bool], None] | None = None
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job has ended
            self._loop.call_soon_threadsafe(self._deliver, number)

    def _deliver(self, number: int) -> None:
        if not self._listener:
            self._pending.append(number)
            return
        number = signal.SIGTERM if number == signal.SIGHUP else number
        now = time.monotonic()
        after_s = now - self._first.setdefault(number, now)
        if not after_s or number == signal.SIGUSR1:  # which only announces a time limit
            self._listener(number, False)
        elif is_second_request(number, after_s):  # else the same request as a moment ago
            self._listener(number, True)

    @staticmethod
    def ignore() -> None:
        """The job has ended: a repeated signal does not change its exit status while this process ends."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # Python itself would set other handlers back to the default at exit

    @contextlib.contextmanager
    def handled_by(self, listener: Callable[[int, bool], None]) -> Iterator[None]:
        """Call `listener(number, repeated)` for each signal meanwhile; repeated: the job is to end at once."""
        self._listener = listener
        pending, self._pending = self._pending, []
        for number in pending:
            self._deliver(number)
        try:
            yield
        finally:
            self._listener = None


async def signal_during(signals: Signals, work: Awaitable[object]) -> int:
    """The signal that asked for the end of the job before the work was done; 0 where there was none."""
    received = asyncio.get_running_loop().create_future()

    def receive(number: int, _: bool) -> None:
        if not received.done():
            received.set_result(number)

    with signals.handled_by(receive):
        await asyncio.wait([received, asyncio.ensure_future(work)], return_when=asyncio.FIRST_COMPLETED)
    return int(received.result()) if received.done() else 0


async def signal_within(signals: Signals, seconds: float) -> int:
    """The signal that asked for the end of the job within that time; 0 where there was none."""
    return await signal_during(signals, asyncio.sleep(seconds))
