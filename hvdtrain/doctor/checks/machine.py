"""This host: cores and threads, memory, limits, folders, data."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.findings import Finding, Setting, check, fail, megabytes, ok, warn

SHM = Path("/dev/shm")
SHM_LEAST, SHM_RANK = 32 << 20, 64 << 20
"""Bytes of shared memory under which jobs die, and that a rank of MPI or NCCL should have."""
RANK_BYTES = 1 << 30
"""Memory that a rank takes with a framework and a small data set."""
ROOM_LEAST, ROOM = 100 << 20, 1 << 30
"""Bytes on the disk of runs: under the first none can be written, under the second it is close."""
FILES_LEAST, FILES = 256, 1024
PROCESSES = 1024
UNLIMITED_V1 = 1 << 60
"""cgroup v1 writes a number as large as this where there is no limit."""


@check("machine", "rank")
def check_threads(setting: Setting) -> Iterator[Finding]:
    """OMP_NUM_THREADS against the cores that a rank has"""
    cores = usable_cores()
    each = max(cores // setting.ranks, 1)
    value = os.environ.get("OMP_NUM_THREADS")
    remedy = f"export OMP_NUM_THREADS={each} (horovodrun and mpirun -x OMP_NUM_THREADS pass it on)"
    if value is None:
        if setting.ranks > 1 and cores > 1:
            text = f"OMP_NUM_THREADS is not set: each of {setting.ranks} ranks starts threads for all {cores} cores"
            yield warn(text, remedy)
            return
        yield ok(f"OMP_NUM_THREADS is not set; {setting.ranks} rank(s) on {cores} core(s)")
        return
    first = value.split(",")[0].strip()
    if not first.isdecimal() or int(first) == 0:
        yield fail(f"OMP_NUM_THREADS={value!r} is no number above 0", remedy)
    elif int(first) > 1 and int(first) * setting.ranks > cores:
        text = f"OMP_NUM_THREADS={first} is too high: {setting.ranks} rank(s) times {first} threads on {cores} core(s)"
        yield warn(text, remedy)
    else:
        yield ok(f"{setting.ranks} rank(s) times {first} thread(s) on {cores} core(s)")


def usable_cores() -> int:
    """Cores of this host that its processes may use together: bound ranks share the host, not one core each."""
    return min(os.cpu_count() or 1, quota() or 1 << 16)


def quota() -> int:
    """Cores that the cgroup grants, at least 1; 0 where it has no limit."""
    for folder in cgroups("cpu"):
        limit, period = _words(folder / "cpu.max", 2)  # version 2
        if not limit:
            (limit,), (period,) = _words(folder / "cpu.cfs_quota_us", 1), _words(folder / "cpu.cfs_period_us", 1)
        if limit.isdecimal() and period.isdecimal() and int(period):
            return max(int(limit) // int(period), 1)
    return 0


def cgroups(controller: str) -> list[Path]:
    """Folders of this process's control group and those above it, versions 2 and 1, the own first."""
    folders = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, names, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup")
        if names and controller not in names.split(","):
            continue
        if names:
            root = root / names if (root / names).is_dir() else root / controller
        inside = root / path.lstrip("/")
        folders += [parent for parent in (inside, *inside.parents) if parent.is_relative_to(root) and parent.is_dir()]
        folders.append(root)  # in a container the path may be the host's
    return folders


def _words(path: Path, count: int) -> list[str]:
    """The first words of a file; empty ones where it has fewer, or cannot be read."""
    try:
        words = path.read_text().split()
    except OSError:
        words = []
    return (words + [""] * count)[:count]


@check("machine", "alone")
def check_binding(setting: Setting) -> Iterator[Finding]:
    """the cores that this process may use; in a job, whether all ranks were bound to the same"""
    mine, all_cores = sorted(os.sched_getaffinity(0)), os.cpu_count() or 1
    if setting.ranks > 1 and len(mine) == 1 and all_cores > 1:
        text = f"bound to core {mine[0]} alone of {all_cores}: all ranks started from here share it"
        yield warn(text, "start without taskset, or give the batch job more cores (--cpus-per-task)")
    else:
        yield ok(f"{len(mine)} of {all_cores} cores may be used")


@check("machine", "host")
def check_shm(setting: Setting) -> Iterator[Finding]:
    """/dev/shm, in which ranks of a host share memory"""
    try:
        room = os.statvfs(SHM)
    except OSError as error:
        yield fail(
            f"{SHM} is not there ({error.strerror})", "mount -t tmpfs tmpfs /dev/shm, or docker run --shm-size=1g"
        )
        return
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    text = f"{SHM} has {megabytes(free)} free of {megabytes(size)}"
    full = "; remove what lies there" if free < size // 2 else ""
    remedy = f"docker run --shm-size=1g, or mount -o remount,size=1g {SHM}{full}"
    if not os.access(SHM, os.W_OK):
        yield fail(f"{SHM} cannot be written to", f"chmod 1777 {SHM}")
    elif free < SHM_LEAST:
        yield fail(f"{text}, too small for MPI and NCCL", remedy)
    elif free < SHM_RANK * setting.ranks:
        yield warn(f"{text}, too small for {setting.ranks} ranks", remedy)
    else:
        yield ok(text)


@check("machine", "host")
def check_memory(setting: Setting) -> Iterator[Finding]:
    """memory: what is free, the limit of the cgroup, swap"""
    numbers = meminfo()
    available, swap = numbers.get("MemAvailable", 0), numbers.get("SwapTotal", 0)
    limit, used = memory_limit()
    by = "free"
    if limit and limit - used < available:
        available, by = limit - used, f"left of the cgroup's {megabytes(limit)}"
    need = RANK_BYTES * setting.ranks
    text = f"{megabytes(available)} {by}, swap {megabytes(swap)}"
    if available < need // 4:
        yield fail(f"{text}: too little for {setting.ranks} rank(s)", "start fewer ranks, or ask for more memory")
    elif available < need:
        text += f": little for {setting.ranks} rank(s), which take about {megabytes(RANK_BYTES)} each"
        yield warn(text, "start fewer ranks, or ask for more memory (docker run -m, sbatch --mem)")
    else:
        yield ok(text)
    if numbers.get("SwapTotal", 0) and numbers.get("SwapFree", 0) < numbers["SwapTotal"] // 2:
        yield warn("more than half of the swap is in use: ranks may crawl", "end what else takes memory on this host")


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[0].isdecimal():
            found[name] = int(rest.split()[0]) * 1024
    return found


def memory_limit() -> tuple[int, int]:
    """Bytes that the tightest cgroup allows and that it uses now; 0, 0 where none limits."""
    tightest = (0, 0)
    for folder in cgroups("memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            (limit,), (used,) = _words(folder / limit_file, 1), _words(folder / used_file, 1)
            small = limit.isdecimal() and used.isdecimal() and int(limit) < UNLIMITED_V1
            if small and (not tightest[0] or int(limit) - int(used) < tightest[0] - tightest[1]):
                tightest = int(limit), int(used)
    return tightest


@check("machine", "rank")
def check_limits(setting: Setting) -> Iterator[Finding]:
    """limits of open files and of processes"""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    remedy = (
        f"ulimit -n {FILES if hard == resource.RLIM_INFINITY else min(4 * FILES, max(hard, FILES))} before the start"
    )
    if hard != resource.RLIM_INFINITY and hard < FILES:
        remedy += " (above the hard limit: raise it in /etc/security/limits.conf, or docker run --ulimit nofile=4096)"
    if files != resource.RLIM_INFINITY and files < FILES:
        text = f"{files} files may be open at once: data loaders and connections of many ranks need more"
        yield fail(text, remedy) if files < FILES_LEAST else warn(text, remedy)
    if processes != resource.RLIM_INFINITY and processes < PROCESSES:
        yield warn(f"{processes} processes and threads are allowed to this user", f"ulimit -u {4 * PROCESSES}")
    if Path("/dev/infiniband").exists() and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] not in (-1,):
        yield warn("InfiniBand needs locked memory, and it is limited", "ulimit -l unlimited")
    enough = files == resource.RLIM_INFINITY or files >= FILES
    if enough:
        yield ok("open files: " + ("no limit" if files == resource.RLIM_INFINITY else f"up to {files}"))


# Folders and data. Asked in a process of its own: a file system that does not answer hangs whoever asks.


def standing(folder: Path) -> Path:
    """The folder, or the nearest one above that is there."""
    folder = Path(os.path.abspath(folder))
    return next((one for one in (folder, *folder.parents) if os.path.lexists(one)), Path("/"))


@check("machine", "host")
def check_folder(setting: Setting) -> Iterator[Finding]:
    """the folder of runs can be written to, has room and locks"""
    wanted, found = Path(os.path.abspath(setting.runs)), standing(setting.runs)
    where = str(wanted) if wanted == found else f"{found} (where {wanted.relative_to(found)} would be made)"
    told, done = setting.probe("folder", str(found), limit_s=15)
    elsewhere = "give another folder by --runs, or mend its permissions"
    if "free" not in told:
        hung = done.status is None or done.status == -14
        yield fail(f"{where} {'does not answer' if hung else 'cannot be used'} ({done.reason()})", elsewhere)
    elif "written" not in told:
        yield fail(f"{where} is not writable ({done.reason()})", elsewhere)
    elif "locked" not in told:
        remedy = "give a folder of another file system by --runs, or have it mounted with locks"
        yield fail(f"{where}: locks do not work there ({done.reason()})", remedy)
    else:
        yield _room(where, told)


def _room(where: str, told: dict[str, Any]) -> Finding:
    text = f"{where} can be written to, locks work, {megabytes(told['free'])} free"
    if told["free"] < ROOM_LEAST or told["inodes"] == 0:
        return fail(f"{where} is full: {megabytes(told['free'])} free", "make room, or give another folder by --runs")
    return warn(text, "make room: checkpoints may not fit") if told["free"] < ROOM else ok(text)


@check("machine", "host")
def check_data(setting: Setting) -> Iterator[Finding]:
    """published data sets that lie here are whole"""
    root = os.environ.get("HVDTRAIN_DATA")
    if root and not os.path.isdir(os.path.expanduser(root)):
        yield warn(f"HVDTRAIN_DATA={root} is no folder", "set it to the folder that holds fashion-mnist/, or unset it")
    told, done = setting.probe("data", limit_s=60)
    if done.status != 0:
        yield fail(f"data sets cannot be looked at ({done.reason()})", "look at the folder of HVDTRAIN_DATA")
        return
    for found in told.values():
        if "damaged" in found:
            reason, _, remedy = found["damaged"].rpartition("; ")
            yield fail(reason, remedy)
    whole = [f"{name} ({found['images']} images)" for name, found in told.items() if "images" in found]
    absent = [name for name, found in told.items() if "missing" in found]
    away = f"; not here, fetched when asked for: {', '.join(absent)}" if absent else ""
    if whole:
        yield ok(f"whole: {', '.join(whole)}{away}")
    elif absent:
        yield ok(f"not here, fetched when asked for: {', '.join(absent)}; digits and synthetic are always there")
