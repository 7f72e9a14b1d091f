"""This host: cores and threads, memory, limits, and the folder of runs."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.check import CheckContext, check
from hvdtrain.doctor.checks.software import has_module
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.arithmetic import SLOWER, openmp_threads
from hvdtrain.system.resources import memory_limit, within_quota
from hvdtrain.system.text import format_bytes

SHM, MEMINFO = Path("/dev/shm"), Path("/proc/meminfo")
SHM_MIN, SHM_PER_RANK = 32 << 20, 64 << 20
"""Bytes of shared memory below which jobs die, and that a rank with MPI or NCCL should have."""
MEMORY_PER_RANK = 1 << 30
"""Bytes of memory that a rank takes with a framework and a small data set."""
PRECISION_FRAMEWORKS = ("torch", "tensorflow")
"""Frameworks whose products are measured, the quickest to import first."""
FILES_MIN, FILES = 256, 1024
PROCESSES = 1024
FREE_MIN, FREE = 100 << 20, 1 << 30
"""Free bytes on the disk of runs: below the first, no run can be written; below the second, space is low."""


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
    first = openmp_threads()
    if not first:
        yield fail(f"OMP_NUM_THREADS={value!r} is not a positive integer", remedy)
    elif first > 1 and first * context.ranks > usable:
        text = f"OMP_NUM_THREADS={first} is too high: {context.ranks} rank(s) times {first} threads on {usable} core(s)"
        yield warn(text, remedy)
    else:
        yield ok(f"{context.ranks} rank(s) times {first} thread(s) on {usable} core(s)")


def usable_cores() -> int:
    """Cores of this host that its processes may use together: bound ranks share the host, not one core each."""
    return within_quota(os.cpu_count() or 1)


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
    if room.f_flag & os.ST_RDONLY:
        yield fail(
            f"{SHM} is mounted read-only", f"mount -o remount,rw {SHM}, or start the container without --read-only"
        )
    elif not os.access(SHM, os.W_OK):
        yield fail(f"{SHM} is not writable", f"chmod 1777 {SHM}")
    elif room.f_files and not room.f_favail:
        yield fail(f"{SHM} can hold no more files, though it has {format_bytes(free)} free", f"delete files in {SHM}")
    elif free < SHM_MIN:
        yield fail(f"{text}, too small for MPI and NCCL", remedy)
    elif free < SHM_PER_RANK * context.ranks:
        yield warn(f"{text}, too small for {context.ranks} ranks", remedy)
    else:
        yield ok(text)


@check("machine", "host")
def check_memory(context: CheckContext) -> Iterator[Finding]:
    """free memory, the cgroup's limit, swap"""
    numbers = _meminfo()
    available, swap = numbers.get("MemAvailable"), numbers.get("SwapTotal", 0)
    limit, used = memory_limit()
    of = "free"
    if available is None and not limit:
        yield warn(f"{MEMINFO} does not tell how much memory is free", "mount -t proc proc /proc")
        return
    if available is None or (limit and limit - used < available):
        available, of = max(limit - used, 0), f"left of the cgroup's {format_bytes(limit)}"
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


def _meminfo() -> dict[str, int]:
    """MEMINFO in bytes; empty where it cannot be read."""
    try:
        lines = MEMINFO.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found = (re.match(r"(\w+):\s*([0-9]{1,18}) kB", line) for line in lines)
    return {match[1]: int(match[2]) * 1024 for match in found if match}


@check("machine", "host", measures=True)
def check_precision(context: CheckContext) -> Iterator[Finding]:
    """whether this processor is faster in fp32 or in bf16"""
    name = next((name for name in PRECISION_FRAMEWORKS if has_module(name)), "")
    if not name:
        return
    answer, completed = context.probe("products", name, limit_s=30)
    if not answer.keys() >= {"fp32", "bf16"}:
        yield warn(f"{name} cannot multiply matrices in both precisions ({completed.reason()})", "train in fp32")
        return
    full, reduced = 1000 * answer["fp32"], 1000 * answer["bf16"]
    ratio = full / reduced
    faster = "as fast in fp32 as in bf16" if 1 / SLOWER < ratio < SLOWER else "faster in fp32"
    faster = "faster in bf16 (--precision bf16)" if ratio >= SLOWER else faster
    times = f"a product in {name} takes {full:.2g} ms in fp32 and {reduced:.2g} ms in bf16"
    yield ok(f"without a GPU, this machine is {faster}: {times}")


@check("machine", "rank")
def check_limits(context: CheckContext) -> Iterator[Finding]:
    """limits on open files and processes"""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    enough = files == resource.RLIM_INFINITY or files >= FILES
    if not enough:
        text = f"only {files} files may be open at once: data loaders and the connections of many ranks need more"
        level = fail if files < FILES_MIN else warn
        yield level(text, _files_remedy(hard))
    if processes != resource.RLIM_INFINITY and processes < PROCESSES:
        yield warn(f"this user may have only {processes} processes and threads", f"ulimit -u {4 * PROCESSES}")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if Path("/dev/infiniband").exists() and locked != resource.RLIM_INFINITY:
        yield warn("InfiniBand needs locked memory, which is limited", "ulimit -l unlimited")
    if enough:
        yield ok("open files: " + ("no limit" if files == resource.RLIM_INFINITY else f"up to {files}"))


def _files_remedy(hard: int) -> str:
    number = FILES if hard == resource.RLIM_INFINITY else min(4 * FILES, max(hard, FILES))
    remedy = f"ulimit -n {number} before the start"
    if hard != resource.RLIM_INFINITY and hard < FILES:
        remedy += " (above the hard limit: raise it in /etc/security/limits.conf, or docker run --ulimit nofile=4096)"
    return remedy


def existing_folder(folder: Path) -> Path:
    """The folder as an absolute path, or its nearest ancestor that exists."""
    folder = Path(os.path.abspath(folder))
    return next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path("/"))


@check("machine", "host")
def check_folder(context: CheckContext) -> Iterator[Finding]:
    """the folder of runs is writable, has free space and supports locks"""
    wanted, existing = Path(os.path.abspath(context.runs)), existing_folder(context.runs)
    where = str(wanted) if wanted == existing else f"{existing} (where {wanted.relative_to(existing)} would be created)"
    # In a subprocess, as a file system that does not respond hangs every process that reads it.
    answer, completed = context.probe("folder", str(existing), limit_s=15)
    yield _folder_finding(where, answer, completed)


def _folder_finding(where: str, answer: dict[str, Any], completed: Completed) -> Finding:
    reason, remedy = completed.reason(), "give another folder with --runs, or correct its permissions"
    if "free" not in answer:
        return fail(f"{where} {'does not respond' if completed.timed_out else 'cannot be used'} ({reason})", remedy)
    if "written" not in answer:
        return fail(f"{where} is not writable ({reason})", remedy)
    if "locked" not in answer:
        remedy = "give a folder on another file system with --runs, or mount this one with locks"
        return fail(f"{where}: file locks do not work there ({reason})", remedy)
    free = format_bytes(answer["free"])
    if answer["free"] < FREE_MIN or answer["inodes"] == 0:
        return fail(f"{where} is full: {free} free", "delete files, or give another folder with --runs")
    text = f"{where} is writable and supports locks, {free} free"
    return warn(text, "delete files: checkpoints may not fit") if answer["free"] < FREE else ok(text)
