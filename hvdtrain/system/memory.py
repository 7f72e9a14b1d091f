"""The memory that this process may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def memory_bytes() -> int:
    """Bytes of memory that this machine has, or fewer that this process's cgroup allows."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    # Of cgroups version 2 and 1, as a container sees its own.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # the file does not exist, or says `max`
            limits.append(int(Path(path).read_text()))
    return min(limits)
