"""Which process something belongs to, in a form that other processes, perhaps on other hosts, can read and check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hvdtrain.system.rank_info import host_name


class ProcessIdentity(NamedTuple):
    """One process among those of all hosts."""

    host: str
    """The host's name, for messages."""
    place: str
    """Where `pid` counts: host, boot and PID namespace, as others have the same numbers; empty where it is unknown."""
    pid: int
    started: int
    """Clock ticks from the boot to the start of the process: the kernel uses a pid again."""

    @classmethod
    def own(cls) -> ProcessIdentity:
        return cls(host_name(), _place(), os.getpid(), _start_time(os.getpid()) or 0)

    def running(self) -> bool | None:
        """Whether the process runs, or is suspended; None where this process cannot know."""
        if not self.place or self.place != _place():
            return None
        return _start_time(self.pid) == self.started


def _place() -> str:
    """Empty where the kernel does not tell all of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{os.uname().nodename} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Field `starttime` of proc(5); None for a process that has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])
