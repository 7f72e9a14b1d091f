"""The memory that this process may use, and that it uses."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path


def memory_bytes() -> int:
    """Bytes of memory that this machine has, or fewer that this process's cgroup allows."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    # Of cgroups version 2 and 1, as a container sees its own.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # the file does not exist, or says `max`
            limits.append(int(Path(path).read_text()))
    return min(limits)


def resident_bytes() -> int:
    """Bytes of this process in memory now, or its greatest number so far where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
