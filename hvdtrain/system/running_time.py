"""Time in which this process runs: a suspended job does not grow older."""

from __future__ import annotations

import asyncio
import time

TICK_S = 0.5
"""How often `RunningTime.tick` should be called."""
SUSPENDED_S = 4 * TICK_S
"""A longer time between two ticks means that the process did not run."""


class RunningTime:
    """Seconds in which this process ran; `tick` counts them.

    The time for which it was suspended (SIGSTOP, `scontrol suspend`) does not count, except for its first SUSPENDED_S
    seconds, so that a machine which delays every tick cannot stop the clock.
    """

    def __init__(self) -> None:
        self.seconds, self._before = 0.0, time.monotonic()

    def tick(self) -> bool:
        """Count the time since the last call; whether the process was suspended in it."""
        now = time.monotonic()
        passed, self._before = now - self._before, now
        self.seconds += min(passed, SUSPENDED_S)
        return passed > SUSPENDED_S


async def sleep(seconds: float) -> None:
    """Wait until this process has run for that many seconds."""
    clock = RunningTime()
    while clock.seconds < seconds:
        await asyncio.sleep(min(TICK_S, seconds - clock.seconds))
        clock.tick()
