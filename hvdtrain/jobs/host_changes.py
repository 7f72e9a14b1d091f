"""Watches the hostfile of a job that survives, while the job runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs.background import in_thread
from hvdtrain.jobs.hosts import Host, read_hostfile

INTERVAL_S = 1.0
"""Between two looks at the hosts."""


async def watch(hostfile: Path, on_hosts: Callable[[tuple[Host, ...]], None], say: Callable[[object], None]) -> None:
    """Call `on_hosts` with the hosts whenever the file changes, until this task is cancelled. say: prints a message.

    Where the file is invalid, the hosts that were known stay.
    """
    changed = _changed(hostfile)
    while True:
        await asyncio.sleep(INTERVAL_S)
        now = await in_thread(_changed, hostfile)
        if now == changed:
            continue
        changed = now
        try:
            on_hosts(await in_thread(read_hostfile, hostfile))
        except UserError as error:
            say(f"{error.reason}; the hosts stay as they were")


def _changed(hostfile: Path) -> float:
    """When a hostfile was written; 0 where there is none."""
    try:
        return os.stat(hostfile).st_mtime
    except OSError:
        return 0.0
