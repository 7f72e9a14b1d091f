"""The checks for every run, which start no process and take no time: training loads these and `variables` alone."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.doctor.check import Check, ExaminedRank, Finding, Row, check, fail, ok, run_check, warn
from hvdtrain.doctor.checks import variables
from hvdtrain.system import rank_info, stacks
from hvdtrain.system.arithmetic import openmp_threads
from hvdtrain.system.network import Interface, interfaces
from hvdtrain.system.resources import cores_of_host, memory_limit
from hvdtrain.system.stacks import STACKS, installed_version
from hvdtrain.system.text import format_bytes

NUMPY_LIMIT = (1, 24)
"""MXNet 1.9.1 uses numpy.bool, which this version removed."""
SHM, MEMINFO = Path("/dev/shm"), Path("/proc/meminfo")
SHM_MIN, SHM_PER_RANK = 32 << 20, 64 << 20
"""Bytes of shared memory below which jobs die, and that a rank with MPI or NCCL should have."""
MEMORY_PER_RANK = 1 << 30
"""Bytes of memory that a rank takes with a framework and a small data set."""
FILES_MIN, FILES = 256, 1024
PROCESSES = 1024
INTERFACE_VARIABLES = ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def has_module(name: str) -> bool:
    """Whether Python finds a module of this name, without importing it."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


@check("software", "host")
def check_python(context: ExaminedRank) -> Iterator[Finding]:
    """version and path of the Python that runs, against the stack"""
    version = platform.python_version()
    stack, running = stacks.installed_stack(), stacks.running_python()
    supported = stack.pythons if stack else stacks.pythons_of("torch")
    if running in supported:
        yield ok(f"Python {version} at {sys.executable}")
        return
    newest = max(supported, key=stacks.numbers)
    age = "new" if stacks.numbers(running) > stacks.numbers(newest) else "old"
    what = f"for the stack {stack.name}, which" if stack else "for all stacks: hvdtrain"
    text = f"Python {version} is too {age} {what} needs Python {stacks.listed(supported)}"
    yield fail(text, stacks.setup_command(stacks.stack_for_this_python()))


@check("software", "host")
def check_numpy(context: ExaminedRank) -> Iterator[Finding]:
    """NumPy's version, which MXNet limits"""
    version = installed_version("numpy")
    if not version:
        yield fail("NumPy is not installed", stacks.repair_command())
    elif has_module("mxnet") and stacks.numbers(version)[:2] >= NUMPY_LIMIT:
        yield fail(f"NumPy {version} is too new for MXNet 1.9.1, which uses numpy.bool", old_numpy())
    else:
        yield ok(f"NumPy {version}")


def old_numpy() -> str:
    """The command for a NumPy that MXNet supports; Pythons that are too new for MXNet have none."""
    if stacks.running_python() in STACKS["all"].pythons:
        return "pip install 'numpy<1.24'"
    return stacks.setup_command(STACKS["all"])


@check("machine", "rank")
def check_threads(context: ExaminedRank) -> Iterator[Finding]:
    """OMP_NUM_THREADS against the number of cores per rank"""
    usable = cores_of_host()
    each = max(usable // context.ranks, 1)
    value = os.environ.get("OMP_NUM_THREADS", "")
    remedy = f"export OMP_NUM_THREADS={each} (horovodrun and mpirun -x OMP_NUM_THREADS pass it on)"
    if not value:
        yield ok(f"OMP_NUM_THREADS is not set: {context.ranks} rank(s) times {each} thread(s) on {usable} core(s)")
        return
    first = openmp_threads()
    if not first:
        yield fail(f"OMP_NUM_THREADS={value!r} is not a positive integer", remedy)
    elif first > 1 and first * context.ranks > usable:
        text = f"OMP_NUM_THREADS={first} is too high: {context.ranks} rank(s) times {first} threads on {usable} core(s)"
        yield warn(text, remedy)
    else:
        yield ok(f"{context.ranks} rank(s) times {first} thread(s) on {usable} core(s)")


@check("machine", "host")
def check_shm(context: ExaminedRank) -> Iterator[Finding]:
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
        remedy = f"mount -o remount,rw,mode=1777 {SHM}, or start the container without --read-only"
        yield fail(f"{SHM} is not writable", remedy)
    elif room.f_files and not room.f_favail:
        yield fail(f"{SHM} can hold no more files, though it has {format_bytes(free)} free", f"delete files in {SHM}")
    elif free < SHM_MIN:
        yield fail(f"{text}, too small for MPI and NCCL", remedy)
    elif free < SHM_PER_RANK * context.ranks:
        yield warn(f"{text}, too small for {context.ranks} ranks", remedy)
    else:
        yield ok(text)


@check("machine", "host")
def check_memory(context: ExaminedRank) -> Iterator[Finding]:
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


@check("machine", "rank")
def check_limits(context: ExaminedRank) -> Iterator[Finding]:
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


@check("network", "host")
def check_interfaces(context: ExaminedRank) -> Iterator[Finding]:
    """network interfaces, and which one Gloo and NCCL use"""
    up = interfaces()
    real = [interface.name for interface in up if not interface.virtual]
    virtual = [interface for interface in up if interface.virtual]
    problems = list(_selected({interface.name: interface for interface in up}, real))
    yield from problems
    if not real:
        names = ", ".join(interface.name for interface in virtual)
        only = f" ({names} reaches containers of this host only)" if virtual else ""
        text = f"no network interface to other hosts is up{only}: all ranks must run on this host"
        yield warn(text, "ip link set eth0 up, or start the container with --network=host")
    elif virtual and "HOROVOD_GLOO_IFACE" not in os.environ:
        names = ", ".join(f"{interface.name} ({interface.address})" for interface in virtual)
        text = f"{names} is up next to {', '.join(real)}; it reaches no other host, but may be selected for a job"
        yield warn(text, _selection(real))
    elif not any(finding.status == "fail" for finding in problems):
        yield ok(", ".join(f"{interface.name} {interface.address}" for interface in up) + " up")


def _selection(real: list[str]) -> str:
    name = real[0] if real else "eth0"
    return (
        f"horovodrun --network-interfaces {name}, export HOROVOD_GLOO_IFACE={name} NCCL_SOCKET_IFNAME={name}, "
        f"or mpirun --mca btl_tcp_if_include {name} --mca oob_tcp_if_include {name}"
    )


def _selected(up: dict[str, Interface], real: list[str]) -> Iterator[Finding]:
    existing = {name for _, name in socket.if_nameindex()}
    for variable in INTERFACE_VARIABLES:
        value = os.environ.get(variable, "")
        # NCCL matches prefixes of names, and excludes names after ^.
        names = [name for name in value.lstrip("=").split(",") if name and not value.startswith("^")]
        exact = variable != "NCCL_SOCKET_IFNAME"
        for name in names:
            matching = [other for other in existing if other == name or (not exact and other.startswith(name))]
            if not matching:
                yield fail(f"{variable}={value}: there is no interface {name} here", _selection(real))
            elif name in up and up[name].virtual:
                text = f"{variable}={value}: {name} ({up[name].address}) is virtual and reaches no other host"
                yield fail(text, _selection(real)) if real else warn(text, _selection(real))
            elif not any(match in up or match == "lo" for match in matching):
                yield fail(f"{variable}={value}: interface {name} is down or has no address", _selection(real))


QUICK = (*(found for found in list(vars().values()) if isinstance(found, Check)), variables.check_variables)


def examine() -> list[Row]:
    rank = ExaminedRank(rank_info.detect(), rank_info.local_size())
    return [row for check in QUICK for row in run_check(check, rank)]
