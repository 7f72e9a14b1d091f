"""The launcher's event loop: tasks whose errors are not lost, waiting, and signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

from hvdtrain.errors import Stopped
from hvdtrain.system.processes import STOP_SIGNALS, TICK_S, Result, RunningTime, in_background, is_second_request

TASKS: set[asyncio.Task[None]] = set()
"""Those that run: event loops have only weak references to them."""


def start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task. An error that ends it goes to the exception handler of the event loop."""
    task = asyncio.get_running_loop().create_task(coroutine)
    TASKS.add(task)
    task.add_done_callback(TASKS.discard)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.result())
    return task


def call_after(seconds: float, function: Callable[[], None]) -> asyncio.Task[None]:
    async def wait() -> None:
        await sleep(seconds)
        function()

    return start_task(wait())


async def sleep(seconds: float) -> None:
    """Wait until this process has run for that many seconds."""
    clock = RunningTime()
    while clock.seconds < seconds:
        await asyncio.sleep(min(TICK_S, seconds - clock.seconds))
        clock.tick()


def in_thread(function: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
    """What a function that may block returns or raises. Its thread keeps neither the loop nor this process."""
    return asyncio.wrap_future(in_background(function, *arguments))


def interrupted_status(number: int) -> int:
    """The exit status of a job that a signal ended before its ranks could write a checkpoint.

    SIGUSR1 announces a time limit: as after a checkpoint, 75 says that the job can be started again.
    """
    return Stopped.exit_status if number == signal.SIGUSR1 else 128 + number


class Signals:
    """Delivers signals to whoever handles them now; the first of those that arrive in between is kept."""

    def __init__(self) -> None:
        """Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._first: dict[int, float] = {}
        """When each signal was received first: monotonic, in s."""
        self._unhandled: asyncio.Future[int] = self._loop.create_future()
        self._listener: Callable[[int, bool], None] | None = None
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job has ended
            self._loop.call_soon_threadsafe(self._deliver, number)

    def _deliver(self, number: int) -> None:
        number = signal.SIGTERM if number == signal.SIGHUP else number
        now = time.monotonic()
        after_s = now - self._first.setdefault(number, now)
        if not self._listener:
            if not self._unhandled.done():
                self._unhandled.set_result(number)
        elif not after_s or number == signal.SIGUSR1:  # which only announces a time limit
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
        if self._unhandled.done():
            listener(self._unhandled.result(), False)
        try:
            yield
        finally:
            self._listener = None

    async def during(self, work: Awaitable[object]) -> int:
        """The signal that asked for the end of the job before the work was done; 0 where there was none."""
        futures: list[asyncio.Future[Any]] = [self._unhandled, asyncio.ensure_future(work)]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        return self._unhandled.result() if self._unhandled.done() else 0

    async def within(self, seconds: float) -> int:
        """The same within that time."""
        return await self.during(asyncio.sleep(seconds))
