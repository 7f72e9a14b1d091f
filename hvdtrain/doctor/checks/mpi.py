"""MPI: which one is there, is it the one of Horovod and of mpi4py, does its mpirun start programs here."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.checks.horovod import built, first_loadable
from hvdtrain.doctor.checks.software import SETUP, there
from hvdtrain.doctor.findings import Finding, Setting, check, fail, first_line, ok, warn
from hvdtrain.doctor.subprocesses import Done


def programs(name: str) -> list[Path]:
    """All programs of a name on PATH, first the one that a shell takes; each folder once."""
    found: dict[Path, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".", name)
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.parent.resolve(), path)
    return list(found.values())


def identify(text: str) -> tuple[str, str]:
    """Vendor and version of an MPI, from what `mpirun --version` or the library says."""
    for vendor, pattern in (
        ("Open MPI", r"Open ?MPI\)?[ v]*(\d+\.\d+\.?\d*)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?(\d+\.\d+)"),
        ("MVAPICH", r"MVAPICH2?\D*(\d+\.\d+\.?\d*)"),
        ("MPICH", r"(?:HYDRA|MPICH)(?:.|\n)*?(\d+\.\d+\.?\d*)"),
    ):
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            return vendor, match.group(1)
    return "an unknown MPI", ""


def mpirun_version(setting: Setting, path: Path) -> tuple[str, str]:
    """Vendor and version of an mpirun."""

    def ask() -> tuple[str, str]:
        done = setting.run([str(path), "--version"], 10)
        return identify(done.out + done.err)

    return setting.once(f"mpirun {path}", ask)


@check("software", "host")
def check_mpi(setting: Setting) -> Iterator[Finding]:
    """which MPI: mpirun, Horovod's and mpi4py's are one"""
    found = programs("mpirun")
    library = _mpi4py(setting)
    if not found:
        if built(setting).get("mpi") or "library" in library:
            yield warn(
                "mpirun is not on PATH: jobs over MPI cannot be started",
                f"export PATH=/path/to/mpi/bin:$PATH, or {SETUP}",
            )
        else:
            yield warn("no MPI: mpirun is not on PATH", f"{SETUP}, or start by horovodrun --gloo")
    else:
        yield from _several(setting, found)
    if "library" not in library:
        yield warn(f"mpi4py does not import ({library['error']}): no --strategy mpi", "pip install 'hvdtrain[mpi]'")
    elif found:
        yield from _same_mpi(setting, found[0], library)


def _several(setting: Setting, found: list[Path]) -> Iterator[Finding]:
    names = [" ".join(filter(None, mpirun_version(setting, path))) for path in found]
    if len(found) > 1:
        others = ", ".join(f"{name} at {path}" for name, path in zip(names, found, strict=True))
        remedy = "leave the one on PATH that Horovod was built with, and make setup after a change"
        yield warn(f"{len(found)} MPIs on PATH, of which the first is taken: {others}", remedy)
    else:
        yield ok(f"mpirun is {names[0]} at {found[0]}")


def _mpi4py(setting: Setting) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        if not there("mpi4py"):
            return {"error": "not installed"}
        told, done = setting.probe("mpi4py", limit_s=20)
        return told if "library" in told else {"error": first_line(subprocesses.telling(done.err)) or done.reason()}

    return setting.once("mpi4py", ask)


def _same_mpi(setting: Setting, mpirun: Path, library: dict[str, Any]) -> Iterator[Finding]:
    ours, theirs = mpirun_version(setting, mpirun), identify(library["library"])
    if ours != theirs:
        text = f"mpirun is {' '.join(ours)}, and mpi4py uses {' '.join(theirs)}: every process would be rank 0 of 1"
        yield fail(
            text,
            f"put the mpirun of {' '.join(theirs)} first on PATH, "
            "or build mpi4py for the other: pip install --no-binary mpi4py mpi4py",
        )
        return
    name = first_loadable(setting)
    horovods = setting.framework(name)["libmpi"] if name else ""
    if horovods and library["libmpi"] and Path(horovods).resolve() != Path(library["libmpi"]).resolve():
        text = f"Horovod uses {horovods}, and mpi4py {library['libmpi']}"
        yield warn(text, f"set LD_LIBRARY_PATH so that both find one, or {SETUP}")
        return
    yield ok(f"mpi4py uses the same, {' '.join(theirs)}")


@check("jobs", "alone")
def check_root(setting: Setting) -> Iterator[Finding]:
    """mpirun starts for this user: Open MPI refuses root"""
    mpirun = shutil.which("mpirun")
    if os.geteuid() != 0 or not mpirun:
        return
    done = setting.run([mpirun, "-np", "1", "true"], 20)
    if done.status and re.search(r"as\s+root", done.err + done.out):
        text = "you are root, and mpirun refuses to run as root"
        remedy = (
            "mpirun --allow-run-as-root, horovodrun --mpi --mpi-args=--allow-run-as-root, "
            "or export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        )
        yield warn(text, remedy)
    elif done.status != 0:
        yield fail(f"mpirun cannot start a program ({done.reason()})", _mpirun_remedy(done))
    else:
        yield ok("mpirun runs as root")


def _mpirun_remedy(done: Done) -> str:
    text = done.err + done.out
    if "shmem" in text or "session" in text.lower():
        return "look whether /tmp and /dev/shm are writable and have room; export TMPDIR=/another/folder"
    return f"run mpirun -np 1 hostname and read what it says; {SETUP} mends an MPI in the environment"


def mpirun_words(setting: Setting, *more: str) -> list[str]:
    """mpirun as this user must call it."""
    mpirun = shutil.which("mpirun") or "mpirun"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 and is_open_mpi(setting, mpirun) else []
    return [mpirun, *as_root, *more]


def is_open_mpi(setting: Setting, mpirun: str) -> bool:
    return mpirun_version(setting, Path(mpirun))[0] == "Open MPI"


@check("jobs", "alone")
def check_slots(setting: Setting) -> Iterator[Finding]:
    """this host takes as many ranks as are planned (--ranks)"""
    cores = len(os.sched_getaffinity(0))
    crowded = setting.ranks > cores
    if crowded:
        text = f"{setting.ranks} ranks on {cores} core(s): they oversubscribe this host and wait for each other"
        yield warn(text, f"start at most {cores} ranks here, or add hosts")
    if shutil.which("mpirun"):
        done = setting.run(mpirun_words(setting, "-np", str(setting.ranks), "true"), 30)
        if done.status and "not enough slots" in done.err + done.out:
            text = f"mpirun has not enough slots on this host for {setting.ranks} ranks"
            yield fail(text, "mpirun --oversubscribe, or name the slots: -H host1:2,host2:2, or a --hostfile")
            return
    if not crowded:
        yield ok(f"{setting.ranks} ranks on {cores} cores")
