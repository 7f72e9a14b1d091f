"""Horovod: installed, and loadable for each framework."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from hvdtrain.doctor.check import CheckContext, check
from hvdtrain.doctor.checks.software import FRAMEWORKS, has_module
from hvdtrain.doctor.findings import Finding, fail, first_line, ok, warn
from hvdtrain.system import stacks
from hvdtrain.system.stacks import framework_version, public_version

RECORD = "hvdtrain.json"
"""File next to Horovod's metadata, which set-up adds to its wheel."""


@check("software", "host")
def check_horovod(context: CheckContext) -> Iterator[Finding]:
    """Horovod's extension for each framework loads, and was built with the installed version of the framework"""
    if not has_module("horovod"):
        remedy = f"{stacks.repair_command()} (or train with --strategy single, ring or another without it)"
        yield fail("Horovod is not installed", remedy)
        return
    stack = stacks.installed_stack()
    built_with = _built_with()
    for name in FRAMEWORKS:
        if not has_module(name):
            continue
        answer = context.framework(name)
        if "horovod_error" in answer:
            if stack and name not in stack.frameworks and "has not been built" in answer["horovod_error"]:
                yield ok(f"Horovod was not built for {name}, which is not part of the stack {stack.name}")
            else:
                yield _cannot_load(name, answer, built_with.get(name, ""))
        elif "built" in answer:
            yield _compare_version(name, built_with.get(name, ""))
    if not shutil.which("horovodrun"):
        program = Path(sys.executable).with_name("horovodrun")
        remedy = f"export PATH={program.parent}:$PATH" if program.exists() else stacks.repair_command()
        yield warn("horovodrun is not on PATH", remedy)


def _cannot_load(name: str, answer: dict[str, Any], built_with: str) -> Finding:
    error = answer["horovod_error"]
    if "has not been built" in error:
        remedy = f"{stacks.repair_command()}, which builds it for the frameworks that are installed"
        return fail(f"Horovod was built without {name}", remedy)
    symbol = re.search(r"undefined symbol: \S+", error)
    # Horovod's message about another version is long, and the loader's error is at its end.
    reason = symbol.group() if symbol else first_line(error, 160)
    now = answer.get("version", "")  # with the build, such as +cu132, which package metadata may lack
    other = built_with and now and built_with != now
    versions = f"; it was built with {name} {built_with}, but {now} is installed" if other else ""
    if name == "torch" and "cuda" in answer and not versions:
        versions = _other_cuda(answer["cuda"])
    text = f"Horovod's extension for {name} does not load ({reason}){versions}"
    if "libmpi" in error or "libopen-" in error:
        remedy = f"add the MPI that Horovod was built with to LD_LIBRARY_PATH, or {stacks.repair_command()}"
        return fail(text, remedy)
    return fail(text, _rebuild())


def _other_cuda(installed: str | None) -> str:
    """installed: the CUDA version of the installed PyTorch; None if it is built for CPUs."""
    built_for = build_record().get("torch_cuda")
    if built_for is None or built_for == (installed or ""):
        return ""
    titles = [f"CUDA {version}" if version else "CPUs" for version in (built_for, installed)]
    return f"; it was built for a torch for {titles[0]}, but the installed one is for {titles[1]}"


def _rebuild() -> str:
    return f"{stacks.repair_command()}, which rebuilds Horovod for the installed versions"


def _compare_version(name: str, built_with: str) -> Finding:
    now, built = framework_version(name), stacks.numbers(built_with)[:2]  # releases of one minor version are compatible
    if now and built and stacks.numbers(now)[:2] != built:
        age = "newer" if stacks.numbers(now) > built else "older"
        text = f"{name} {now} is {age} than the {built_with} that Horovod was built with: it loads, but may crash"
        return warn(text, _rebuild())
    version = public_version("horovod")
    return ok(f"Horovod {version} for {name}" + (f", built with {built_with}" if built_with else ""))


def _built_with() -> dict[str, str]:
    """Versions of the frameworks when Horovod was built, from the file that its build leaves."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("horovod")
        if spec and spec.submodule_search_locations:
            versions = json.loads(Path(spec.submodule_search_locations[0], "metadata.json").read_text())
            return {name: str(versions.get("pytorch" if name == "torch" else name) or "") for name in FRAMEWORKS}
    return dict(build_record().get("frameworks", {}))


def build_record() -> dict[str, Any]:
    """Where Horovod was built: `frameworks`, `torch_cuda`, `mpi`, ..., as setup/wheel_description.py describes one.

    Empty for a Horovod that set-up did not build.
    """
    with contextlib.suppress(OSError, ValueError, metadata.PackageNotFoundError):
        record = json.loads(metadata.distribution("horovod").read_text(RECORD) or "{}")
        return record if isinstance(record, dict) else {}
    return {}
