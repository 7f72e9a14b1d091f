"""MPI: which one is installed, whether Horovod and mpi4py use the same, and whether mpirun starts programs here."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.horovod import build_record, built, first_loadable
from hvdtrain.doctor.checks.software import has_module
from hvdtrain.doctor.findings import Finding, fail, first_line, ok, warn
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system import stacks


def programs(name: str) -> list[Path]:
    """All programs of a name on PATH, the one that a shell starts first; each folder once."""
    found: dict[Path, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".", name)
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.parent.resolve(), path)
    return list(found.values())


def identify(text: str) -> tuple[str, str]:
    """Vendor and version of an MPI, from the output of `mpirun --version` or the library's version string."""
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


def mpirun_version(context: CheckContext, path: Path) -> tuple[str, str]:
    """Vendor and version of an mpirun."""

    def ask() -> tuple[str, str]:
        completed = context.run([str(path), "--version"], 10)
        return identify(completed.out + completed.err)

    return context.once(f"mpirun {path}", ask)


@check("software", "host")
def check_mpi(context: CheckContext) -> Iterator[Finding]:
    """mpirun, Horovod and mpi4py use the same MPI"""
    found = programs("mpirun")
    library = _mpi4py(context)
    if found:
        yield _which_mpirun(context, found)
        yield from built_for_another_mpi(mpirun_version(context, found[0]))
    else:
        yield _no_mpirun(context, library)
    if "library" not in library:
        text = f"mpi4py cannot be imported ({library['error']}): --strategy mpi is not available"
        yield warn(text, "pip install 'hvdtrain[mpi]'")
    elif found:
        yield _same_mpi(context, found[0], library)


def _no_mpirun(context: CheckContext, library: dict[str, Any]) -> Finding:
    if built(context).get("mpi") or "library" in library:
        text = "mpirun is not on PATH: jobs cannot be started over MPI"
        return warn(text, f"export PATH=/path/to/mpi/bin:$PATH, or {stacks.repair_command()}")
    return warn("no MPI: mpirun is not on PATH", f"{stacks.repair_command()}, or start jobs with horovodrun --gloo")


def _which_mpirun(context: CheckContext, found: list[Path]) -> Finding:
    names = [" ".join(filter(None, mpirun_version(context, path))) for path in found]
    if len(found) == 1:
        return ok(f"mpirun is {names[0]} at {found[0]}")
    listed = ", ".join(f"{name} at {path}" for name, path in zip(names, found, strict=True))
    remedy = f"keep only the one on PATH that Horovod was built with; after a change run {stacks.repair_command()}"
    return warn(f"{len(found)} MPIs on PATH, of which the first is used: {listed}", remedy)


def built_for_another_mpi(found: tuple[str, str]) -> Iterator[Finding]:
    """Horovod against the vendor and version of mpirun: another major version may load, but crash or hang."""
    kind, _, version = str(build_record().get("mpi", "")).partition(" ")
    major, major_built = stacks.numbers(found[1])[:1], stacks.numbers(version)[:1]
    same_kind = found[0].replace(" ", "").lower() == kind
    if same_kind and major and major_built and major != major_built:
        age = "new" if major > major_built else "old"
        text = f"mpirun is {' '.join(found)}, too {age} for Horovod, which was built with {found[0]} {version}"
        yield warn(text, f"put the mpirun of {found[0]} {version} first on PATH, or {stacks.repair_command()}")


def _mpi4py(context: CheckContext) -> dict[str, Any]:
    """`library` and `libmpi` of mpi4py, or `error`."""

    def ask() -> dict[str, Any]:
        if not has_module("mpi4py"):
            return {"error": "not installed"}
        answer, completed = context.probe("mpi4py", limit_s=20)
        if "library" in answer:
            return answer
        return {"error": first_line(subprocesses.error_line(completed.err)) or completed.reason()}

    return context.once("mpi4py", ask)


def _same_mpi(context: CheckContext, mpirun: Path, library: dict[str, Any]) -> Finding:
    of_mpirun, of_mpi4py = mpirun_version(context, mpirun), identify(library["library"])
    name = " ".join(of_mpi4py)
    if of_mpirun != of_mpi4py:
        text = f"mpirun is {' '.join(of_mpirun)}, but mpi4py uses {name}: every process would be rank 0 of 1"
        return fail(
            text,
            f"put the mpirun of {name} first on PATH, or build mpi4py for the other: "
            "pip install --no-binary mpi4py mpi4py",
        )
    framework = first_loadable(context)
    of_horovod = context.framework(framework)["libmpi"] if framework else ""
    if of_horovod and library["libmpi"] and Path(of_horovod).resolve() != Path(library["libmpi"]).resolve():
        text = f"Horovod uses {of_horovod}, but mpi4py uses {library['libmpi']}"
        return warn(text, f"set LD_LIBRARY_PATH so that both load the same library, or {stacks.repair_command()}")
    return ok(f"mpi4py uses the same MPI, {name}")


@check("jobs", "alone")
def check_root(context: CheckContext) -> Iterator[Finding]:
    """mpirun starts programs for this user: Open MPI refuses to run as root"""
    mpirun = shutil.which("mpirun")
    if os.geteuid() != 0 or not mpirun:
        return
    completed = context.run([mpirun, "-np", "1", "true"], 20)
    if completed.status and re.search(r"as\s+root", completed.err + completed.out):
        remedy = (
            "mpirun --allow-run-as-root, horovodrun --mpi --mpi-args=--allow-run-as-root, "
            "or export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        )
        yield warn("the user is root, and mpirun refuses to run as root", remedy)
    elif completed.status != 0:
        yield fail(f"mpirun cannot start a program ({completed.reason()})", _mpirun_remedy(completed))
    else:
        yield ok("mpirun runs as root")


def _mpirun_remedy(completed: Completed) -> str:
    text = completed.err + completed.out
    if "shmem" in text or "session" in text.lower():
        return "check that /tmp and /dev/shm are writable and have free space; export TMPDIR=/another/folder"
    return f"run mpirun -np 1 hostname and read its output; for an MPI in this environment: {stacks.repair_command()}"


def mpirun_command(context: CheckContext, *options: str) -> list[str]:
    """The command line of mpirun for this user, root included."""
    mpirun = shutil.which("mpirun") or "mpirun"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 and is_open_mpi(context, mpirun) else []
    return [mpirun, *as_root, *options]


def is_open_mpi(context: CheckContext, mpirun: str) -> bool:
    """Whether this mpirun is Open MPI's, whose options others do not have."""
    return mpirun_version(context, Path(mpirun))[0] == "Open MPI"


@check("jobs", "alone")
def check_slots(context: CheckContext) -> Iterator[Finding]:
    """this host has slots and cores for the planned ranks (--ranks)"""
    cores = len(os.sched_getaffinity(0))
    oversubscribed = context.ranks > cores
    if oversubscribed:
        text = f"{context.ranks} ranks on {cores} core(s) oversubscribe this host and slow each other down"
        yield warn(text, f"start at most {cores} ranks here, or add hosts")
    if shutil.which("mpirun"):
        completed = context.run(mpirun_command(context, "-np", str(context.ranks), "true"), 30)
        if completed.status and "not enough slots" in completed.err + completed.out:
            text = f"mpirun: there are not enough slots on this host for {context.ranks} ranks"
            yield fail(text, "mpirun --oversubscribe, or give the slots: -H host1:2,host2:2, or a --hostfile")
            return
    if not oversubscribed:
        yield ok(f"{context.ranks} ranks on {cores} cores")
