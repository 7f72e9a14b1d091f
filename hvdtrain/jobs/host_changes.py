"""Watches the hostfile of a job that survives, while the job runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs.event_loop import in_thread
from hvdtrain.jobs.hosts import Host, read_hostfile
from hvdtrain.system.processes import RunningTime

INTERVAL_S = 1.0
MISSING_S = 5.0
"""How long slots are missing in the file before they are gone: it may be read while it is written."""


async def watch(
    hostfile: Path, hosts: Sequence[Host], on_hosts: Callable[[tuple[Host, ...]], None], say: Callable[[object], None]
) -> None:
    """Call `on_hosts` with the hosts whenever they change, until this task is cancelled. say: prints a message.

    hosts: those that the job has. Where the file is invalid, they stay.
    """
    slots, clock, problem = dict(hosts), RunningTime(), ""
    missing = dict[str, float]()
    """Since when a host has fewer slots in the file."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        clock.tick()
        try:
            listed = dict(await in_thread(read_hostfile, hostfile))
        except UserError as error:
            if not problem:
                say(f"{error.reason}; the hosts stay as they were")
            problem = error.reason
            continue
        if problem:
            say(f"--hostfile {hostfile} is valid again")
            problem = ""
        fewer = [name for name, count in slots.items() if listed.get(name, 0) < count]
        missing = {name: missing.get(name, clock.seconds) for name in fewer}
        kept = {name: slots[name] for name, since in missing.items() if clock.seconds - since < MISSING_S}
        if (now := {**listed, **kept}) != slots:
            slots = now
            on_hosts(tuple(Host(*host) for host in slots.items()))
