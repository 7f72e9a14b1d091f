"""This host: cores and threads, memory, limits."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.system import resources
from hvdtrain.system.resources import cpu_quota, memory_limit
from hvdtrain.system.text import format_bytes

SHM = Path("/dev/shm")
SHM_MIN, SHM_PER_RANK = 32 << 20, 64 << 20
"""Bytes of shared memory below which jobs die, and that a rank with MPI or NCCL should have."""
MEMORY_PER_RANK = 1 << 30
"""Bytes of memory that a rank takes with a framework and a small data set."""
FILES_MIN, FILES = 256, 1024
PROCESSES = 1024


@check("machine", "rank")
def check_threads(context: CheckContext) -> Iterator[Finding]:
    """OMP_NUM_THREADS against the number of cores per rank"""
    usable = usable_cores()
    each = max(usable // context.ranks, 1)
    value = os.environ.get("OMP_NUM_THREADS")
    remedy = f"export OMP_NUM_THREADS={each} (horovodrun and mpirun -x OMP_NUM_THREADS pass it on)"
    if value is None:
        if context.ranks > 1 and usable > 1:
            text = f"OMP_NUM_THREADS is not set: each of {context.ranks} ranks starts threads for all {usable} cores"
            yield warn(text, remedy)
            return
        yield ok(f"OMP_NUM_THREADS is not set; {context.ranks} rank(s) on {usable} core(s)")
        return
    first = value.split(",")[0].strip()
    if not first.isdecimal() or int(first) == 0:
        yield fail(f"OMP_NUM_THREADS={value!r} is not a positive integer", remedy)
    elif int(first) > 1 and int(first) * context.ranks > usable:
        text = f"OMP_NUM_THREADS={first} is too high: {context.ranks} rank(s) times {first} threads on {usable} core(s)"
        yield warn(text, remedy)
    else:
        yield ok(f"{context.ranks} rank(s) times {first} thread(s) on {usable} core(s)")


def usable_cores() -> int:
    """Cores of this host that its processes may use together: bound ranks share the host, not one core each."""
    return min(os.cpu_count() or 1, cpu_quota() or 1 << 16)


@check("machine", "alone")
def check_binding(context: CheckContext) -> Iterator[Finding]:
    """the cores that this process is bound to"""
    bound, all_cores = sorted(resources.core_binding().before), os.cpu_count() or 1
    if context.ranks > 1 and len(bound) == 1 and all_cores > 1:
        text = f"bound to core {bound[0]} only, of {all_cores}: all ranks started from here share it"
        yield warn(text, "start without taskset, or request more cores for the batch job (--cpus-per-task)")
    else:
        yield ok(f"may use {len(bound)} of {all_cores} cores")


@check("machine", "host")
def check_shm(context: CheckContext) -> Iterator[Finding]:
    """/dev/shm, the shared memory of a host's ranks"""
    try:
        room = os.statvfs(SHM)
    except OSError as error:
        remedy = "mount -t tmpfs tmpfs /dev/shm, or docker run --shm-size=1g"
        yield fail(f"{SHM} does not exist ({error.strerror})", remedy)
        return
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    text = f"{SHM} has {format_bytes(free)} free of {format_bytes(size)}"
    full = "; delete files in it" if free < size // 2 else ""
    remedy = f"docker run --shm-size=1g, or mount -o remount,size=1g {SHM}{full}"
    if not os.access(SHM, os.W_OK):
        yield fail(f"{SHM} is not writable", f"chmod 1777 {SHM}")
    elif free < SHM_MIN:
        yield fail(f"{text}, too small for MPI and NCCL", remedy)
    elif free < SHM_PER_RANK * context.ranks:
        yield warn(f"{text}, too small for {context.ranks} ranks", remedy)
    else:
        yield ok(text)


@check("machine", "host")
def check_memory(context: CheckContext) -> Iterator[Finding]:
    """free memory, the cgroup's limit, swap"""
    numbers = meminfo()
    available, swap = numbers.get("MemAvailable", 0), numbers.get("SwapTotal", 0)
    limit, used = memory_limit()
    of = "free"
    if limit and limit - used < available:
        available, of = limit - used, f"left of the cgroup's {format_bytes(limit)}"
    needed = MEMORY_PER_RANK * context.ranks
    text = f"{format_bytes(available)} {of}, swap {format_bytes(swap)}"
    if available < needed // 4:
        yield fail(f"{text}: too little for {context.ranks} rank(s)", "start fewer ranks, or request more memory")
    elif available < needed:
        text += f": little for {context.ranks} rank(s), which take about {format_bytes(MEMORY_PER_RANK)} each"
        yield warn(text, "start fewer ranks, or request more memory (docker run -m, sbatch --mem)")
    else:
        yield ok(text)
    if swap and numbers.get("SwapFree", 0) < swap // 2:
        yield warn("more than half of the swap is in use: ranks may be very slow", "end other programs on this host")


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[0].isdecimal():
            found[name] = int(rest.split()[0]) * 1024
    return found


@check("machine", "rank")
def check_limits(context: CheckContext) -> Iterator[Finding]:
    """limits on open files and processes"""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    enough = files == resource.RLIM_INFINITY or files >= FILES
    if not enough:
        text = f"only {files} files may be open at once: data loaders and the connections of many ranks need more"
        yield fail(text, _files_remedy()) if files < FILES_MIN else warn(text, _files_remedy())
    if processes != resource.RLIM_INFINITY and processes < PROCESSES:
        yield warn(f"this user may have only {processes} processes and threads", f"ulimit -u {4 * PROCESSES}")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if Path("/dev/infiniband").exists() and locked != resource.RLIM_INFINITY:
        yield warn("InfiniBand needs locked memory, which is limited", "ulimit -l unlimited")
    if enough:
        yield ok("open files: " + ("no limit" if files == resource.RLIM_INFINITY else f"up to {files}"))


def _files_remedy() -> str:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    number = FILES if hard == resource.RLIM_INFINITY else min(4 * FILES, max(hard, FILES))
    remedy = f"ulimit -n {number} before the start"
    if hard != resource.RLIM_INFINITY and hard < FILES:
        remedy += " (above the hard limit: raise it in /etc/security/limits.conf, or docker run --ulimit nofile=4096)"
    return remedy
