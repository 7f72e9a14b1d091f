"""Python, NumPy and the frameworks: installed, importable, and in the tested versions."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.findings import Finding, fail, first_line, ok, warn
from hvdtrain.system import stacks
from hvdtrain.system.stacks import DISTRIBUTIONS, STACKS, installed_version

FRAMEWORKS = tuple(DISTRIBUTIONS)
"""In the order in which a check tries them."""
PINS = Path(__file__).parents[3] / "setup" / "stacks"
"""Folder with the pinned versions of each stack; a checkout has it, an installed package does not."""
OWN_PINS = ".hvdtrain-constraints"
"""File of an environment with the machine's own PyTorch: the pins of its other packages."""
NUMPY_LIMIT = (1, 24)
"""MXNet 1.9.1 uses numpy.bool, which this version removed."""
MAX_LISTED = 6
"""Packages that one sentence lists."""


@check("software", "host")
def check_python(context: CheckContext) -> Iterator[Finding]:
    """version and path of the Python that runs, against the stack"""
    version = platform.python_version()
    own, running = stacks.installed_stack(), stacks.running_python()
    supported = own.pythons if own else stacks.pythons_of("torch")
    if running in supported:
        yield ok(f"Python {version} at {sys.executable}")
        return
    newest = max(supported, key=stacks.numbers)
    age = "new" if stacks.numbers(running) > stacks.numbers(newest) else "old"
    what = f"for the stack {own.name}, which" if own else "for all stacks: hvdtrain"
    text = f"Python {version} is too {age} {what} needs Python {stacks.listed(supported)}"
    yield fail(text, stacks.setup_command(stacks.stack_for_this_python()))


@check("software", "host")
def check_versions(context: CheckContext) -> Iterator[Finding]:
    """versions of packages against setup/stacks/STACK/constraints.txt"""
    own = stacks.installed_stack()
    if own is None:
        yield ok("versions were not compared: this environment is none of the stacks")
        return
    file = Path(sys.prefix, OWN_PINS)
    if not file.exists():
        file = PINS / own.name / "constraints.txt"
    try:
        pins = read_pins(file.read_text())
    except OSError:
        yield ok(f"versions were not compared: there is no setup/stacks/{own.name}/constraints.txt next to the package")
        return
    found = {name: installed_version(name) for name in pins}
    others = [
        f"{name} {version} (pinned {pins[name]})"
        for name, version in found.items()
        if version and version.split("+")[0] != pins[name].split("+")[0]
    ]
    if others:
        more = f" and {len(others) - MAX_LISTED} more" if len(others) > MAX_LISTED else ""
        text = f"versions differ from those of the stack {own.name}: {', '.join(others[:MAX_LISTED])}{more}"
        yield warn(text, stacks.repair_command())
    else:
        yield ok(f"all {sum(map(bool, found.values()))} packages have the versions of the stack {own.name}")


def read_pins(text: str) -> dict[str, str]:
    """Name and version of each `name==version` line, and of each `name==version ; condition` that is true here."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)[ \t]*(?:;([^#\n]*))?", text, re.MULTILINE)
    return {name: version for name, version, condition in lines if not condition or _is_true(condition)}


def _is_true(condition: str) -> bool:
    try:
        from packaging.markers import Marker
    except ImportError:  # the check `requirements` reports it
        return False
    return Marker(condition).evaluate()


def has_module(name: str) -> bool:
    """Whether Python finds a module of this name, without importing it."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


@check("software", "host")
def check_numpy(context: CheckContext) -> Iterator[Finding]:
    """NumPy's version, which MXNet limits"""
    version = installed_version("numpy")
    if not version:
        yield fail("NumPy is not installed", stacks.repair_command())
    elif has_module("mxnet") and stacks.numbers(version)[:2] >= NUMPY_LIMIT:
        yield fail(f"NumPy {version} is too new for MXNet 1.9.1, which uses numpy.bool", _old_numpy())
    else:
        yield ok(f"NumPy {version}")


def _old_numpy() -> str:
    """The command for a NumPy that MXNet supports, of which Pythons that are too new for MXNet have none."""
    if stacks.running_python() in STACKS["all"].pythons:
        return "pip install 'numpy<1.24'"
    return stacks.setup_command(STACKS["all"])


@check("software", "host")
def check_frameworks(context: CheckContext) -> Iterator[Finding]:
    """each framework of the stack can be imported"""
    missing = [name for name in FRAMEWORKS if not has_module(name)]
    if len(missing) == len(FRAMEWORKS):
        yield fail("none of the frameworks is installed", stacks.repair_command())
        return
    for name in FRAMEWORKS:
        if name in missing:
            yield _missing(name)
            continue
        answer = context.framework(name)
        if "framework_error" in answer:
            error = answer["framework_error"]
            text = f"{name} is installed but cannot be imported ({first_line(error)})"
            yield fail(text, _import_remedy(name, error))
        elif "numpy_error" in answer:
            text = f"{name} {answer['version']} cannot use NumPy {installed_version('numpy')} ({answer['numpy_error']})"
            yield fail(text, stacks.repair_command())
        else:
            yield ok(f"{name} {answer['version']}")


def _missing(name: str) -> Finding:
    why = stacks.why_missing(name)
    command = stacks.setup_command(stacks.stack_with(name))
    if why:  # on purpose
        return ok(f"{name} {why}: {command}")
    return warn(f"{name} is not installed, but part of the stack", stacks.repair_command())


def _import_remedy(name: str, error: str) -> str:
    if "numpy" in error and ("has no attribute" in error or "_ARRAY_API" in error):
        return _old_numpy() if name == "mxnet" else stacks.repair_command()
    if re.search(r"lib(cuda|cudart|cudnn|cublas|nccl|nvrtc)\b", error):
        return f"install {name} built for this machine's CUDA, or for the CPU: see docs/install.md"
    runtime = re.search(r"lib(quadmath|gomp|gfortran)\.so\.(\d+)", error)
    if runtime:  # a runtime library of the compiler; Debian's package has its number in the name
        return f"apt-get install lib{runtime[1]}{runtime[2]}"
    if "GLIBC" in error:
        return "use a newer operating system or image: the C or C++ library of this one is too old"
    if "SIGILL" in error:
        return f"install {name} built for this processor"
    stack = stacks.stack_with(name).name
    return f"pip install --force-reinstall --no-deps -c setup/stacks/{stack}/constraints.txt {DISTRIBUTIONS[name][0]}"
