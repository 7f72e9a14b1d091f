"""Which hosts a job that survives may use now: by a script that prints them, or by a hostfile that may change."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs.background import in_thread
from hvdtrain.jobs.hosts import Host, parse_hosts, read_hostfile
from hvdtrain.jobs.job import Survival
from hvdtrain.system.processes import describe_status

INTERVAL_S = 1.0
"""Between two looks at the hosts."""
SCRIPT_S = 30.0
"""How long a script may take."""


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


def discover(script: Path) -> tuple[Host, ...]:
    """The hosts that a script prints, each as name:slots in a line of its own.

    Raises UserError where it fails, takes too long, or prints something else.
    """
    try:
        done = subprocess.run(
            [script.absolute()], stdin=subprocess.DEVNULL, capture_output=True, timeout=SCRIPT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"--host-discovery-script {script} took more than {SCRIPT_S:g} s", "make it faster") from None
    except OSError as error:
        raise UserError(f"--host-discovery-script {script} cannot be run ({error.strerror})", "correct it") from None
    if done.returncode:
        reason = f"--host-discovery-script {script} {describe_status(done.returncode)}"
        raise UserError(reason, "let it print a line of name:slots for each host")
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
    try:
        return parse_hosts(",".join(lines)) if lines else ()
    except UserError as error:
        remedy = "let it print a line of name:slots for each host"
        raise UserError(f"--host-discovery-script {script}: {error.reason}", remedy) from None


def _changed(hostfile: Path | None) -> float:
    """When a hostfile was written; 0 where there is none."""
    try:
        return os.stat(hostfile).st_mtime if hostfile else 0.0
    except OSError:
        return 0.0
