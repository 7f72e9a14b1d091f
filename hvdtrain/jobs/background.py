"""What runs beside others in the launcher's event loop: tasks whose errors are not lost, and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hvdtrain.system.processes import TICK_S, RunningTime


def start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task. An error that ends it goes to the exception handler of the event loop."""
    task = asyncio.get_running_loop().create_task(coroutine)
    task.add_done_callback(_raise_error)
    return task


def _raise_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()


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
