"""Horovod: installed, loadable for each framework, and what it was built with."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.software import FRAMEWORKS, framework_version, has_module, installed_version
from hvdtrain.doctor.findings import Finding, fail, first_line, ok, warn
from hvdtrain.doctor.remedies import SETUP

REBUILD = f"rm -f .venv/.hvdtrain-horovod .venv/.hvdtrain-setup && {SETUP}, which rebuilds Horovod"


@check("software", "host")
def check_horovod(context: CheckContext) -> Iterator[Finding]:
    """Horovod's extension for each framework loads, and was built with the installed version of the framework"""
    if not has_module("horovod"):
        yield fail("Horovod is not installed", f"{SETUP} (or train with --strategy single, ring or another without it)")
        return
    built_with = _built_with()
    for name in FRAMEWORKS:
        if not has_module(name):
            continue
        answer = context.framework(name)
        if "horovod_error" in answer:
            yield _cannot_load(name, answer["horovod_error"], built_with.get(name, ""))
        elif "built" in answer:
            yield _compare_version(name, built_with.get(name, ""))
    if not shutil.which("horovodrun"):
        program = Path(sys.executable).with_name("horovodrun")
        remedy = f"export PATH={program.parent}:$PATH" if program.exists() else SETUP
        yield warn("horovodrun is not on PATH", remedy)


def _cannot_load(name: str, error: str, built_with: str) -> Finding:
    if "has not been built" in error:
        remedy = f"{SETUP}, which builds it for the frameworks that are installed"
        return fail(f"Horovod was built without {name}", remedy)
    symbol = re.search(r"undefined symbol: \S+", error)
    # Horovod's message about another version is long, and the loader's error is at its end.
    reason = symbol.group() if symbol else first_line(error, 160)
    now = framework_version(name)
    other = built_with and now and built_with != now
    versions = f"; it was built with {name} {built_with}, but {now} is installed" if other else ""
    text = f"Horovod's extension for {name} does not load ({reason}){versions}"
    if "libmpi" in error or "libopen-" in error:
        return fail(text, f"add the MPI that Horovod was built with to LD_LIBRARY_PATH, or {SETUP}")
    return fail(text, REBUILD)


def _compare_version(name: str, built_with: str) -> Finding:
    now = framework_version(name)
    if built_with and now and built_with.split("+")[0] != now.split("+")[0]:
        text = f"Horovod was built with {name} {built_with}, but {now} is installed: it loads, but may crash"
        return warn(text, f"{SETUP}, which rebuilds Horovod for the installed version")
    version = installed_version("horovod")
    return ok(f"Horovod {version} for {name}" + (f", built with {built_with}" if built_with else ""))


def _built_with() -> dict[str, str]:
    """Versions of the frameworks when Horovod was built, from the file that its build leaves."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("horovod")
        if spec and spec.submodule_search_locations:
            found = json.loads(Path(spec.submodule_search_locations[0], "metadata.json").read_text())
            return {name: str(found.get("pytorch" if name == "torch" else name) or "") for name in FRAMEWORKS}
    return {}


def loads(context: CheckContext, name: str) -> bool:
    """Whether Horovod loads for a framework on this host."""
    return has_module("horovod") and has_module(name) and "built" in context.framework(name)


def first_loadable(context: CheckContext) -> str:
    """The first framework for which Horovod loads, without trying the others; empty if there is none."""
    return next((name for name in FRAMEWORKS if loads(context, name)), "")


def built(context: CheckContext) -> dict[str, Any]:
    """What Horovod was built with: `gloo`, `mpi`, `nccl` (its version); empty if Horovod does not load."""
    name = first_loadable(context)
    return dict(context.framework(name)["built"]) if name else {}


@check("software", "host")
def check_controllers(context: CheckContext) -> Iterator[Finding]:
    """what Horovod was built with: Gloo, MPI, NCCL"""
    has = built(context)
    if not has:
        return  # the check `horovod` reports it
    if not has["gloo"] and not has["mpi"]:
        yield fail("Horovod was built with neither Gloo nor MPI", f"{SETUP}, which builds it with both")
        return
    launchers_of = {"gloo": ("Gloo", "horovodrun --gloo"), "mpi": ("MPI", "horovodrun --mpi and mpirun")}
    for what, (label, launchers) in launchers_of.items():
        if not has[what]:
            text = f"Horovod was built without {label}: {launchers} cannot be used"
            yield warn(text, f"HOROVOD_WITH_{what.upper()}=1 {SETUP}")
    have = [label for label, what in (("Gloo", "gloo"), ("MPI", "mpi"), ("NCCL", "nccl")) if has[what]]
    yield ok(f"Horovod has {', '.join(have)}" + ("" if has["nccl"] else " (no NCCL: for CPUs)"))
