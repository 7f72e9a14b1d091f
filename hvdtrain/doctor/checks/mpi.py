"""MPI: which one is installed, and whether Horovod and mpi4py use the same."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.check import CheckContext, check
from hvdtrain.doctor.checks.horovod import build_record
from hvdtrain.doctor.checks.software import built, first_loadable, has_module
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.doctor.subprocesses import error_line
from hvdtrain.system import stacks


def programs(name: str) -> list[Path]:
    """All programs of a name on PATH, the one that a shell starts first; each folder once."""
    paths: dict[Path, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if path := shutil.which(name, path=folder or "."):
            paths.setdefault(Path(path).parent.resolve(), Path(path))
    return list(paths.values())


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
    return context.once(f"mpirun {path}", lambda: identify(context.run([str(path), "--version"], 10).text))


def is_open_mpi(context: CheckContext, mpirun: str) -> bool:
    """Whether this mpirun is Open MPI's, whose options others do not have."""
    return mpirun_version(context, Path(shutil.which(mpirun) or mpirun))[0] == "Open MPI"


@check("software", "host")
def check_mpi(context: CheckContext) -> Iterator[Finding]:
    """mpirun, Horovod and mpi4py use the same MPI"""
    mpiruns = programs("mpirun")
    library = _mpi4py(context)
    if mpiruns:
        yield _which_mpirun(context, mpiruns)
        yield from built_for_another_mpi(mpirun_version(context, mpiruns[0]))
    else:
        yield _no_mpirun(context, library)
    if "library" not in library:
        text = f"mpi4py cannot be imported ({library['error']}): --strategy mpi is not available"
        yield warn(text, "pip install 'hvdtrain[mpi]'")
    elif mpiruns:
        yield _same_mpi(context, mpiruns[0], library)


def _no_mpirun(context: CheckContext, library: dict[str, Any]) -> Finding:
    if built(context).get("mpi") or "library" in library:
        text = "mpirun is not on PATH: jobs cannot be started over MPI"
        return warn(text, f"export PATH=/path/to/mpi/bin:$PATH, or {stacks.repair_command()}")
    return warn("no MPI: mpirun is not on PATH", f"{stacks.repair_command()}, or start jobs with horovodrun --gloo")


def _which_mpirun(context: CheckContext, paths: list[Path]) -> Finding:
    names = [" ".join(filter(None, mpirun_version(context, path))) for path in paths]
    if len(paths) == 1:
        return ok(f"mpirun is {names[0]} at {paths[0]}")
    listed = ", ".join(f"{name} at {path}" for name, path in zip(names, paths, strict=True))
    remedy = f"keep only the one on PATH that Horovod was built with; after a change run {stacks.repair_command()}"
    return warn(f"{len(paths)} MPIs on PATH, of which the first is used: {listed}", remedy)


def built_for_another_mpi(mpirun: tuple[str, str]) -> Iterator[Finding]:
    """Horovod against the vendor and version of mpirun: another major version may load, but crash or hang."""
    vendor, version = mpirun
    built_vendor, _, built_version = str(build_record().get("mpi", "")).partition(" ")
    major, built_major = stacks.numbers(version)[:1], stacks.numbers(built_version)[:1]
    if vendor.replace(" ", "").lower() == built_vendor and major and built_major and major != built_major:
        age = "new" if major > built_major else "old"
        other = f"{vendor} {built_version}"
        text = f"mpirun is {vendor} {version}, too {age} for Horovod, which was built with {other}"
        yield warn(text, f"put the mpirun of {other} first on PATH, or {stacks.repair_command()}")


def _mpi4py(context: CheckContext) -> dict[str, Any]:
    """`library` and `libmpi` of mpi4py, or `error`."""
    if not has_module("mpi4py"):
        return {"error": "not installed"}
    answer, completed = context.probe("mpi4py", limit_s=20)
    return answer if "library" in answer else {"error": error_line(completed.err) or completed.reason()}


def _same_mpi(context: CheckContext, mpirun: Path, library: dict[str, Any]) -> Finding:
    of_mpirun, of_mpi4py = mpirun_version(context, mpirun), identify(library["library"])
    name = " ".join(of_mpi4py)
    if of_mpirun != of_mpi4py:
        text = f"mpirun is {' '.join(of_mpirun)}, but mpi4py uses {name}: every process would be rank 0 of 1"
        build = "pip install --no-binary mpi4py mpi4py"
        return fail(text, f"put the mpirun of {name} first on PATH, or build mpi4py for the other: {build}")
    framework = first_loadable(context)
    of_horovod = context.framework(framework)["libmpi"] if framework else ""
    if of_horovod and library["libmpi"] and Path(of_horovod).resolve() != Path(library["libmpi"]).resolve():
        text = f"Horovod uses {of_horovod}, but mpi4py uses {library['libmpi']}"
        return warn(text, f"set LD_LIBRARY_PATH so that both load the same library, or {stacks.repair_command()}")
    return ok(f"mpi4py uses the same MPI, {name}")
