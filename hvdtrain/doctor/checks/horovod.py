"""Horovod: is it there, does it load for each framework, what was it built with."""

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

from hvdtrain.doctor.checks.software import SETUP, framework_version, installed, there
from hvdtrain.doctor.findings import FRAMEWORKS, Finding, Setting, check, fail, first_line, ok, warn

ANEW = f"rm -f .venv/.hvdtrain-horovod .venv/.hvdtrain-setup && {SETUP}, which builds Horovod anew"


@check("software", "host")
def check_horovod(setting: Setting) -> Iterator[Finding]:
    """Horovod's extension for each framework loads, and was built with its version"""
    if not there("horovod"):
        yield fail("Horovod is not installed", f"{SETUP} (or train with --strategy single, ring or another without it)")
        return
    built_with = _built_with()
    for name in FRAMEWORKS:
        if not there(name):
            continue
        told = setting.framework(name)
        if "horovod_error" in told:
            yield _broken(name, told["horovod_error"], built_with.get(name, ""))
        elif "built" in told:
            yield _version(name, built_with.get(name, ""))
    command = shutil.which("horovodrun")
    if not command:
        beside = Path(sys.executable).with_name("horovodrun")
        remedy = f"export PATH={beside.parent}:$PATH" if beside.exists() else SETUP
        yield warn("horovodrun is not on PATH", remedy)


def _broken(name: str, error: str, built_with: str) -> Finding:
    if "has not been built" in error:
        return fail(
            f"Horovod was built without {name}", f"{SETUP}, which builds it for the frameworks that are installed"
        )
    symbol = re.search(r"undefined symbol: \S+", error)
    # Horovod's own words of another version are long, and what the loader says is at their end.
    reason = symbol.group() if symbol else first_line(error, 160)
    now = framework_version(name)
    other = built_with and now and built_with != now
    before = f"; it was built with {name} {built_with}, and {now} is installed" if other else ""
    text = f"Horovod's extension for {name} does not load ({reason}){before}"
    if "libmpi" in error or "libopen-" in error:
        return fail(text, f"put the MPI it was built with on LD_LIBRARY_PATH, or {SETUP}")
    return fail(text, ANEW)


def _version(name: str, built_with: str) -> Finding:
    now = framework_version(name)
    if built_with and now and built_with.split("+")[0] != now.split("+")[0]:
        text = f"Horovod was built with {name} {built_with}, and {now} is installed: it loads, and may crash"
        return warn(text, f"{SETUP}, which builds Horovod anew for another version")
    return ok(f"Horovod {installed('horovod')} for {name}" + (f", built with {built_with}" if built_with else ""))


def _built_with() -> dict[str, str]:
    """Versions of the frameworks when Horovod was built, from the file that its build leaves."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("horovod")
        if spec and spec.submodule_search_locations:
            found = json.loads(Path(spec.submodule_search_locations[0], "metadata.json").read_text())
            return {name: str(found.get("pytorch" if name == "torch" else name) or "") for name in FRAMEWORKS}
    return {}


def loads(setting: Setting, name: str) -> bool:
    """Whether Horovod loads for a framework here."""
    return there("horovod") and there(name) and "built" in setting.framework(name)


def first_loadable(setting: Setting) -> str:
    """The first framework for which Horovod loads, others are not asked; empty where it loads for none."""
    return next((name for name in FRAMEWORKS if loads(setting, name)), "")


def built(setting: Setting) -> dict[str, Any]:
    """What Horovod says that it was built with: `gloo`, `mpi`, `nccl` (its version); empty where it does not load."""
    name = first_loadable(setting)
    return dict(setting.framework(name)["built"]) if name else {}


@check("software", "host")
def check_controllers(setting: Setting) -> Iterator[Finding]:
    """what Horovod was built with: Gloo, MPI, NCCL"""
    has = built(setting)
    if not has:
        return  # said by the check `horovod`
    if not has["gloo"] and not has["mpi"]:
        yield fail("Horovod has neither Gloo nor MPI", f"{SETUP}, which builds it with both")
        return
    for what, starts in (("gloo", "horovodrun --gloo"), ("mpi", "horovodrun --mpi and mpirun")):
        if not has[what]:
            text = f"Horovod was built without {what.upper() if what == 'mpi' else 'Gloo'}: {starts} cannot be used"
            yield warn(text, f"HOROVOD_WITH_{what.upper()}=1 {SETUP}")
    have = [label for label, what in (("Gloo", "gloo"), ("MPI", "mpi"), ("NCCL", "nccl")) if has[what]]
    yield ok(f"Horovod has {', '.join(have)}" + ("" if has["nccl"] else " (no NCCL: for CPUs)"))
