"""Limits of this process's control groups (cgroups), versions 1 and 2."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
UNLIMITED_V1 = 1 << 60
"""cgroup v1 reports a number as large as this where there is no limit."""


def cgroups(controller: str) -> list[Path]:
    """Folders of this process's control group and its ancestors, innermost first."""
    folders = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, names, path = line.split(":", 2)
        root = ROOT
        if names and controller not in names.split(","):
            continue
        if names:
            root = root / names if (root / names).is_dir() else root / controller
        inside = root / path.lstrip("/")
        folders += [parent for parent in (inside, *inside.parents) if parent.is_relative_to(root) and parent.is_dir()]
        folders.append(root)  # in a container the path may be the host's
    return folders


def cpu_quota() -> int:
    """Cores that the innermost limit grants, at least 1; 0 without a limit."""
    for folder in cgroups("cpu"):
        limit, period = _fields(folder / "cpu.max", 2)  # version 2
        if not limit:
            (limit,), (period,) = _fields(folder / "cpu.cfs_quota_us", 1), _fields(folder / "cpu.cfs_period_us", 1)
        if limit.isdecimal() and period.isdecimal() and int(period):
            return max(int(limit) // int(period), 1)
    return 0


def memory_limit() -> tuple[int, int]:
    """Limit and current use, in bytes, of the cgroup with the least memory left; 0, 0 without a limit."""
    tightest = (0, 0)
    for folder in cgroups("memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            (limit,), (used,) = _fields(folder / limit_file, 1), _fields(folder / used_file, 1)
            limited = limit.isdecimal() and used.isdecimal() and int(limit) < UNLIMITED_V1
            if limited and (not tightest[0] or int(limit) - int(used) < tightest[0] - tightest[1]):
                tightest = int(limit), int(used)
    return tightest


def _fields(path: Path, count: int) -> list[str]:
    """The first fields of a file; empty ones if it has fewer, or cannot be read."""
    try:
        fields = path.read_text().split()
    except OSError:
        fields = []
    return (fields + [""] * count)[:count]
