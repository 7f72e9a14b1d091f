"""Watches which hosts a job that survives may use, while it runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs.background import in_thread
from hvdtrain.jobs.discovery import discover
from hvdtrain.jobs.hosts import Host, read_hostfile
from hvdtrain.jobs.job import Survival

INTERVAL_S = 1.0
"""Between two looks at the hosts."""


async def watch(
    survival: Survival, on_hosts: Callable[[tuple[Host, ...]], None], say: Callable[[object], None]
) -> None:
    """Call `on_hosts` with the hosts whenever they change, until this task is cancelled. say: prints a message.

    Where they cannot be found out, those that were known stay.
    """
    last: tuple[Host, ...] | None = None
    changed, problem = _changed(survival.hostfile), ""
    while survival.host_discovery_script or survival.hostfile:
        await asyncio.sleep(INTERVAL_S)
        try:
            if survival.host_discovery_script:
                hosts = await in_thread(discover, survival.host_discovery_script)
            else:
                assert survival.hostfile
                now = await in_thread(_changed, survival.hostfile)
                if now == changed:
                    continue
                changed, hosts = now, await in_thread(read_hostfile, survival.hostfile)
        except UserError as error:
            if problem != error.reason:
                problem = error.reason
                say(f"{error.reason}; the hosts stay as they were")
            continue
        problem = ""
        if hosts != last:
            last = hosts
            on_hosts(hosts)


def _changed(hostfile: Path | None) -> float:
    """When a hostfile was written; 0 where there is none."""
    try:
        return os.stat(hostfile).st_mtime if hostfile else 0.0
    except OSError:
        return 0.0
