"""Python, NumPy and the frameworks: installed, importable, and in the tested versions."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.findings import Finding, fail, first_line, ok, warn
from hvdtrain.doctor.remedies import SETUP
from hvdtrain.system.versions import DISTRIBUTIONS, EXTRAS

FRAMEWORKS = tuple(DISTRIBUTIONS)
"""In the order in which a check tries them."""
PINS = Path(__file__).parents[3] / "setup" / "constraints.txt"
NUMPY_LIMIT = (1, 24)
"""MXNet 1.9.1 uses numpy.bool, which this version removed."""
MAX_LISTED = 6
"""Packages that one sentence lists."""


@check("software", "host")
def check_python(context: CheckContext) -> Iterator[Finding]:
    """version and path of the Python that runs"""
    version = platform.python_version()
    if not (3, 10) <= sys.version_info[:2] < (3, 12):
        text = f"Python {version} is not 3.10 or 3.11, which MXNet and Horovod need"
        yield fail(text, f"BASE_PYTHON=python3.11 {SETUP}")
        return
    yield ok(f"Python {version} at {sys.executable}")


@check("software", "host")
def check_versions(context: CheckContext) -> Iterator[Finding]:
    """versions of packages against setup/constraints.txt"""
    try:
        pins = read_pins(PINS.read_text())
    except OSError:
        yield ok("versions were not compared: there is no setup/constraints.txt next to the package")
        return
    found = {name: installed_version(name) for name in pins}
    others = [
        f"{name} {version} (pinned {pins[name]})"
        for name, version in found.items()
        if version and version.split("+")[0] != pins[name]
    ]
    if others:
        more = f" and {len(others) - MAX_LISTED} more" if len(others) > MAX_LISTED else ""
        text = f"versions differ from those that hvdtrain is tested with: {', '.join(others[:MAX_LISTED])}{more}"
        yield warn(text, f"{SETUP}, or pip install -c setup/constraints.txt -e .")
    else:
        yield ok(f"all {sum(map(bool, found.values()))} packages have the pinned versions")


def read_pins(text: str) -> dict[str, str]:
    """Name and version of each `name==version` line."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, re.MULTILINE))


def installed_version(name: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def framework_version(name: str) -> str:
    """The version of a framework, under whichever of its distributions' names; empty if it is not installed."""
    return next(filter(None, map(installed_version, DISTRIBUTIONS[name])), "")


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
        yield fail("NumPy is not installed", SETUP)
    elif has_module("mxnet") and tuple(map(int, version.split(".")[:2])) >= NUMPY_LIMIT:
        yield fail(f"NumPy {version} is too new for MXNet 1.9.1, which uses numpy.bool", "pip install 'numpy<1.24'")
    else:
        yield ok(f"NumPy {version}")


@check("software", "host")
def check_frameworks(context: CheckContext) -> Iterator[Finding]:
    """each framework can be imported"""
    missing = [name for name in FRAMEWORKS if not has_module(name)]
    if len(missing) == len(FRAMEWORKS):
        yield fail("none of the frameworks is installed", SETUP)
        return
    for name in FRAMEWORKS:
        if name in missing:
            yield warn(f"{name} is not installed", f"pip install 'hvdtrain[{EXTRAS[name]}]', then {SETUP} for Horovod")
            continue
        answer = context.framework(name)
        if "framework_error" in answer:
            error = answer["framework_error"]
            text = f"{name} is installed but cannot be imported ({first_line(error)})"
            yield fail(text, _import_remedy(name, error))
        else:
            yield ok(f"{name} {answer['version']}")


def _import_remedy(name: str, error: str) -> str:
    if "numpy" in error and ("has no attribute" in error or "_ARRAY_API" in error):
        return "pip install 'numpy<1.24'"
    if re.search(r"lib(cuda|cudart|cudnn|cublas|nccl|nvrtc)\b", error):
        return f"install {name} built for this machine's CUDA, or for the CPU: see setup/constraints.txt"
    runtime = re.search(r"lib(quadmath|gomp|gfortran)\.so\.(\d+)", error)
    if runtime:  # a runtime library of the compiler; Debian's package has its number in the name
        return f"apt-get install lib{runtime[1]}{runtime[2]}"
    if "GLIBC" in error:
        return "use a newer operating system or image: the C or C++ library of this one is too old"
    if "SIGILL" in error:
        return f"install {name} built for this processor"
    return f"pip install --force-reinstall --no-deps -c setup/constraints.txt {DISTRIBUTIONS[name][0]}"
