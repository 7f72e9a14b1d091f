"""What runs beside the launcher's event loop: tasks whose errors are not lost, waiting, and access to files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from hvdtrain.system.processes import TICK_S, RunningTime

FILES_S = 20.0
"""How long a server of files may take for an answer."""
Result = TypeVar("Result")
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
    """Call a function when this process has run for that many seconds."""

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
    result: Future[Result] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function(*arguments))
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(result)


class Files:
    """Files that may be on a server that does not respond. on_silence: called when it has not done so."""

    def __init__(self, on_silence: Callable[[], None]) -> None:
        self._on_silence, self._responds = on_silence, True

    async def call(self, function: Callable[..., Result], *arguments: Any) -> Result | None:
        """What a function returns or raises that uses the files; None where the server does not respond in time."""
        if not self._responds:
            return None
        try:
            return await asyncio.wait_for(in_thread(function, *arguments), FILES_S)
        except asyncio.TimeoutError:
            self._responds = False
            self._on_silence()
            return None
