"""Control groups (cgroups): one limits the memory of a command, with the page cache of the files that it reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system.resources import CGROUP_ROOT


class LimitedMemory(NamedTuple):
    """A control group.

    command: the words before a command that run it in the group. peak_file: holds the most that it used.
    """

    command: list[str]
    peak_file: Path

    @property
    def peak(self) -> int:
        """The most bytes that the group used at a time; 0 where the kernel does not tell (version 2 before 5.19)."""
        return int(self.peak_file.read_text()) if self.peak_file.exists() else 0


@contextlib.contextmanager
def control_groups(controller: str, count: int = 1) -> Iterator[tuple[bool, list[Path]]]:
    """Whether the control groups of this controller are of version 1, and new ones, which are removed at the end.

    Raises UserError where none can be made.
    """
    version_1 = (CGROUP_ROOT / controller).is_dir()
    root = CGROUP_ROOT / controller if version_1 else CGROUP_ROOT
    groups = [root / f"hvdtrain-{os.getpid()}-{number}" for number in range(count)]
    try:
        try:
            for group in groups:
                group.mkdir()
        except OSError as error:
            raise UserError(f"no control group can be made here ({error})", "run this as root on a host") from None
        yield version_1, groups
    finally:
        for group in groups:
            with contextlib.suppress(OSError):  # it does not exist, or its processes have not ended
                group.rmdir()


@contextlib.contextmanager
def limited_memory(limit: int) -> Iterator[LimitedMemory]:
    """A group of at most `limit` bytes, without swap. Raises UserError where none can be made."""
    with control_groups("memory") as (version_1, (group,)):
        limit_file = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        swap_file = group / ("memory.memsw.limit_in_bytes" if version_1 else "memory.swap.max")
        if not limit_file.exists():
            raise UserError(f"{group.parent} has no control of memory", "run this on a host whose kernel has it")
        limit_file.write_text(str(limit))
        with contextlib.suppress(OSError):  # a kernel without an account of swap
            swap_file.write_text(str(limit if version_1 else 0))
        peak = group / ("memory.max_usage_in_bytes" if version_1 else "memory.peak")
        yield LimitedMemory(["sh", "-c", f'echo $$ > {group / "cgroup.procs"} && exec "$@"', "sh"], peak)
