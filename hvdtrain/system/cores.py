"""Binding each rank of a host to cores of its own (`--bind`), before the libraries that compute start their threads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hvdtrain.system import rank_info
from hvdtrain.system.cgroups import cpu_quota

ROOT = Path("/sys/devices/system")
LEAST_THREADS = 2
"""Fewest hardware threads per rank for which ranks are bound: Horovod's background thread and those of MPI, Gloo and
the ring run next to the computation, and must not wait for it."""


class Core(NamedTuple):
    """A physical core. node: its NUMA node. threads: the hardware threads of it that this process may use."""

    node: int
    threads: tuple[int, ...]


class Binding(NamedTuple):
    """The hardware threads that a rank may use before and after `bind`; the same where it is not bound."""

    before: frozenset[int]
    after: frozenset[int]

    @property
    def text(self) -> str:
        """The bound hardware threads in the format of the kernel, as 0-3,8; empty if not bound."""
        return "" if self.after == self.before else as_list(self.after)


_binding: Binding | None = None


def binding() -> Binding:
    """The binding of this process."""
    own = frozenset(os.sched_getaffinity(0))
    return _binding or Binding(own, own)


def bind(uses_gpu: bool) -> Binding:
    """Bind this process to its rank's share of the host's cores, and let OpenMP use as many threads, unless it is set.

    Call it before any thread is started, as only those started later are also bound. Nothing is bound where that may
    be worse than the kernel's own choice: with one rank on the host; with fewer than LEAST_THREADS hardware threads for
    a rank; where a launcher, Slurm or taskset has bound the process; in an elastic job, whose ranks change; under a CPU
    quota, as other jobs then use the same cores; and on GPUs, each of which belongs to a NUMA node of its own.
    """
    global _binding
    before = frozenset(os.sched_getaffinity(0))
    local_rank, ranks = rank_info.detect().local_rank, rank_info.local_size()
    cores = read_cores(before)
    quota = cpu_quota()
    kept = rank_info.ELASTIC in os.environ or uses_gpu or (0 < quota < len(before)) or _is_bound(before)
    part = () if kept else share(cores, local_rank, ranks)
    after = frozenset(thread for core in part for thread in core.threads) or before
    if part:
        os.sched_setaffinity(0, after)
        os.environ.setdefault("OMP_NUM_THREADS", str(len(part)))
    _binding = Binding(before, after)
    return _binding


def of_rank() -> int:
    """Hardware threads that this rank has for itself: those it is bound to, or its share of the host's; at least 1."""
    own = binding()
    count = len(own.after)
    if own.after == own.before and not _is_bound(own.after):
        count //= rank_info.local_size()
    return max(min(count, cpu_quota() or count), 1)


def share(cores: Sequence[Core], local_rank: int, ranks: int) -> Sequence[Core]:
    """The cores of one of `ranks` ranks of the host, next to each other; none if they are not to be bound.

    All ranks make the same choice. The numbers of cores differ by one at most, and a rank's cores are of one NUMA node
    if the number of ranks is a multiple of that of equal nodes.
    """
    count = len(cores)
    parts = [cores[rank * count // ranks : (rank + 1) * count // ranks] for rank in range(ranks)]
    if (
        ranks < 2
        or local_rank >= ranks
        or min(sum(len(core.threads) for core in part) for part in parts) < LEAST_THREADS
    ):
        return ()
    return parts[local_rank]


def read_cores(allowed: Iterable[int], root: Path = ROOT) -> list[Core]:
    """The physical cores of these hardware threads, by NUMA node; one core each where the kernel does not tell."""
    allowed = set(allowed)
    nodes = {
        thread: int(path.parent.name.removeprefix("node"))
        for path in root.glob("node/node*/cpulist")
        for thread in _read_list(path)
    }
    found = set()
    for thread in allowed:
        siblings = _read_list(root / f"cpu/cpu{thread}/topology/thread_siblings_list") | {thread}
        found.add(Core(nodes.get(thread, 0), tuple(sorted(siblings & allowed))))
    return sorted(found)


def _is_bound(allowed: frozenset[int]) -> bool:
    """Whether the process may use less than its control group: the kernel grants at most that to who asks for all."""
    try:
        os.sched_setaffinity(0, _read_list(ROOT / "cpu/possible") or allowed)
        return frozenset(os.sched_getaffinity(0)) != allowed
    except OSError:
        return True
    finally:
        os.sched_setaffinity(0, allowed)


def _read_list(path: Path) -> set[int]:
    """A list of the kernel's (cpuset(7), List format), such as 0-3,8; empty if it cannot be read."""
    try:
        ranges = [part.split("-") for part in path.read_text().strip().split(",") if part]
        return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}
    except (OSError, ValueError):
        return set()


def as_list(threads: Iterable[int]) -> str:
    """The inverse of the kernel's format: {0, 1, 2, 3, 8} as 0-3,8."""
    ranges: list[list[int]] = []
    for thread in sorted(threads):
        if ranges and thread == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], thread]
        else:
            ranges.append([thread])
    return ",".join("-".join(map(str, ends)) for ends in ranges)
