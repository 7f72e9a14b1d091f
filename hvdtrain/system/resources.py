"""The memory, cores and open files that this process may use; `--bind` gives each rank of a host cores of its own."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import launching, rank_info
from hvdtrain.system.text import format_ranks

CGROUPS, CGROUP_ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
DEVICE_ROOT = Path("/sys/devices/system")
UNLIMITED_V1 = 1 << 60
"""cgroup v1 reports a number as large as this where there is no limit."""
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit and use of memory, of cgroups version 2 and 1, and in `memory.stat` the pages of files that are freed first."""
CORES_PER_TASK = "SLURM_CPUS_PER_TASK"
MIN_THREADS = 2
"""Fewest hardware threads per rank for which ranks are bound: Horovod's background thread and those of MPI, Gloo and
the ring run next to the computation, and must not wait for it."""


def cgroups(controller: str) -> list[Path]:
    """Folders of this process's control group and its ancestors, innermost first."""
    folders = []
    try:
        lines = CGROUPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    for _, names, path in (fields for line in lines if len(fields := line.split(":", 2)) == 3):
        root = CGROUP_ROOT
        if names and controller not in names.split(","):
            continue
        if names:
            root = root / names if os.path.isdir(root / names) else root / controller
        inside = root / path.lstrip("/")
        above = (parent for parent in (inside, *inside.parents) if parent.is_relative_to(root))
        folders += [folder for folder in above if os.path.isdir(folder)]
        folders.append(root)  # in a container the path may be the host's
    return folders


FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The limit of open files with which this process was started, which its children are to have: soft and hard."""


def allow_files(count: int, spare: int) -> None:
    """Raise this process's limit of open files to `count`, and `spare` more where that is allowed.

    Raises UserError if the limit is below `count`, and may not be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if most < count:
        remedy = f"raise the limit (ulimit -n {count}, or LimitNOFILE, nofile in limits.conf), or start fewer ranks"
        raise UserError(f"{count} open files are needed, but the limit is {hard}", remedy)
    wanted = min(count + spare, most)
    if soft < wanted and soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_files() -> None:
    """In a child process, before its program: the limit as it was before `allow_files`."""
    resource.setrlimit(resource.RLIMIT_NOFILE, FILES)


def cpu_quota() -> int:
    """Cores that all limits grant, at least 1; 0 without a limit."""
    quotas = []
    for folder in cgroups("cpu"):
        limit, period = _fields(folder / "cpu.max", 2)  # version 2
        if not limit:
            (limit,), (period,) = _fields(folder / "cpu.cfs_quota_us", 1), _fields(folder / "cpu.cfs_period_us", 1)
        if limit.isdecimal() and period.isdecimal() and int(period):
            quotas.append(max(int(limit) // int(period), 1))
    return min(quotas, default=0)


def within_quota(cores: int) -> int:
    """Of this number of cores, as many as the limits grant."""
    return min(cores, cpu_quota() or cores)


def memory_limit() -> tuple[int, int]:
    """Limit and current use, in bytes, of the cgroup with the least memory left; 0, 0 without a limit."""
    return min(_memory_limits(), key=lambda limit: limit[0] - limit[1], default=(0, 0))


def memory_bytes() -> int:
    """Bytes of memory that this machine has, or fewer that this process's cgroups allow."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(limit for limit, _ in _memory_limits())])


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Limit of each cgroup that limits memory, and current use, without what the kernel frees when it is needed."""
    for folder in cgroups("memory"):
        for limit_file, used_file, cache in MEMORY_FILES:
            (limit,), (used,) = _fields(folder / limit_file, 1), _fields(folder / used_file, 1)
            if limit.isdecimal() and used.isdecimal() and int(limit) < UNLIMITED_V1:
                yield int(limit), max(int(used) - _statistic(folder / "memory.stat", cache), 0)


def out_of_memory_kills() -> int:
    """How many processes of this one's control group the kernel has killed so far, as they needed too much memory."""
    files = ("memory.events", "memory.oom_control")  # of versions 2 and 1
    return sum(_statistic(folder / name, "oom_kill") for folder in cgroups("memory")[:1] for name in files)


def _statistic(path: Path, name: str) -> int:
    """The number of that name in a file of names and numbers; 0 if it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        numbers = dict(line.split() for line in path.read_text().splitlines())
        return int(numbers.get(name, 0))
    return 0


def _fields(path: Path, count: int) -> list[str]:
    """The first fields of a file; empty ones if it has fewer, or cannot be read."""
    try:
        fields = path.read_text(errors="replace").split()
    except OSError:
        fields = []
    return (fields + [""] * count)[:count]


def resident_bytes() -> int:
    """Bytes of this process in memory now, or its greatest number so far where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Core(NamedTuple):
    """A physical core. node: its NUMA node. threads: the hardware threads of it that this process may use."""

    node: int
    threads: tuple[int, ...]


class Binding(NamedTuple):
    """The hardware threads that a rank may use before and after `bind_cores`; the same where it is not bound."""

    before: frozenset[int]
    after: frozenset[int]

    @property
    def text(self) -> str:
        """The bound hardware threads in the format of the kernel, as 0-3,8; empty if not bound."""
        return "" if self.after == self.before else core_list(self.after)


_binding: Binding | None = None


def core_binding() -> Binding:
    allowed = frozenset(os.sched_getaffinity(0))
    return _binding or Binding(allowed, allowed)


def bind_cores(uses_gpu: bool) -> Binding:
    """Bind this process to its rank's share of the host's cores.

    Call it before any thread is started, as only those started later are also bound. Nothing is bound where that may
    be worse than the kernel's own choice: with one rank on the host; with fewer than MIN_THREADS hardware threads for
    a rank; where a launcher, Slurm or taskset has bound the process; under a CPU quota, as other jobs then use the same
    cores; and on GPUs, each of which belongs to a NUMA node of its own.
    """
    global _binding
    before = frozenset(os.sched_getaffinity(0))
    local_rank, ranks = rank_info.detect().local_rank, rank_info.local_size()
    cores = read_cores(before)
    quota = cpu_quota()
    kept = uses_gpu or (0 < quota < len(before)) or _granted(before) != before
    part = () if kept else core_share(cores, local_rank, ranks)
    after = frozenset(thread for core in part for thread in core.threads) or before
    if part:
        os.sched_setaffinity(0, after)
    _binding = Binding(before, after)
    return _binding


def cores_of_rank() -> int:
    """Hardware threads that this rank has for itself, at least 1: an equal share of what all ranks of the host have.

    It is less where a launcher has bound the rank to fewer, or Slurm was asked for fewer. All ranks of a host have the
    same number, unless a launcher has bound them to different ones.
    """
    given = os.environ.get(CORES_PER_TASK, "")
    of_slurm = int(given) if rank_info.NUMBER.fullmatch(given) else sys.maxsize
    return max(min(cores_of_host() // rank_info.local_size(), len(core_binding().after), of_slurm), 1)


def cores_of_host() -> int:
    """Hardware threads that all ranks of this host have together: their launcher's, as far as limits grant them."""
    before = core_binding().before
    return within_quota(len(launching.affinity(before) & _granted(before) | before))


def core_share(cores: Sequence[Core], local_rank: int, ranks: int) -> Sequence[Core]:
    """The cores of one of `ranks` ranks of the host, next to each other; none if they are not to be bound.

    All ranks make the same choice. The numbers of cores differ by one at most, and a rank's cores are of one NUMA node
    if the number of ranks is a multiple of that of equal nodes.
    """
    count = len(cores)
    parts = [cores[rank * count // ranks : (rank + 1) * count // ranks] for rank in range(ranks)]
    fewest = min(sum(len(core.threads) for core in part) for part in parts)
    return () if ranks < 2 or local_rank >= ranks or fewest < MIN_THREADS else parts[local_rank]


def read_cores(allowed: Iterable[int], root: Path = DEVICE_ROOT) -> list[Core]:
    """The physical cores of these hardware threads, by NUMA node; one core each where the kernel does not tell."""
    allowed = set(allowed)
    nodes = {
        thread: int(path.parent.name.removeprefix("node"))
        for path in root.glob("node/node*/cpulist")
        for thread in _read_list(path)
    }
    cores = set()
    for thread in allowed:
        siblings = _read_list(root / f"cpu/cpu{thread}/topology/thread_siblings_list") | {thread}
        cores.add(Core(nodes.get(thread, 0), tuple(sorted(siblings & allowed))))
    return sorted(cores)


def _granted(allowed: frozenset[int]) -> frozenset[int]:
    """What the control group of this process has: the kernel grants at most that to who asks for all.

    None where it may not ask. allowed: what the process may use, and again afterwards.
    """
    now = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, _read_list(DEVICE_ROOT / "cpu/possible") or allowed)
        return frozenset(os.sched_getaffinity(0))
    except OSError:
        return frozenset()
    finally:
        os.sched_setaffinity(0, now)


def _read_list(path: Path) -> set[int]:
    """A list of the kernel's (cpuset(7), List format), such as 0-3,8; empty if it cannot be read."""
    try:
        ranges = [part.split("-") for part in path.read_text().strip().split(",") if part]
        return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}
    except (OSError, ValueError):
        return set()


def core_list(threads: Iterable[int]) -> str:
    """The inverse of the kernel's format: {0, 1, 2, 3, 8} as 0-3,8."""
    return format_ranks(threads).replace(" ", "")
