"""Python, NumPy and the frameworks: are they there, do they load, in which versions."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hvdtrain.doctor.findings import FRAMEWORKS, Finding, Setting, check, fail, first_line, ok, warn

PINS = Path(__file__).parents[3] / "setup" / "constraints.txt"
SETUP = "make setup"
EXTRAS = {"torch": "pytorch", "mxnet": "mxnet", "tensorflow": "tensorflow"}
DISTRIBUTIONS = {
    "torch": ("torch",),
    "mxnet": ("mxnet", "mxnet-cu112"),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
NUMPY_LIMIT = (1, 24)
"""MXNet 1.9.1 uses numpy.bool, which this version removed."""
LISTED = 6
"""Names in one sentence at most."""


@check("software", "host")
def check_python(setting: Setting) -> Iterator[Finding]:
    """the Python that runs, and its environment"""
    version = platform.python_version()
    if not (3, 10) <= sys.version_info[:2] < (3, 12):
        yield fail(
            f"Python {version} is not 3.10 or 3.11, which MXNet and Horovod need", f"BASE_PYTHON=python3.11 {SETUP}"
        )
        return
    yield ok(f"Python {version} at {sys.executable}")


@check("software", "host")
def check_versions(setting: Setting) -> Iterator[Finding]:
    """versions of packages against setup/constraints.txt"""
    try:
        pins = read_pins(PINS.read_text())
    except OSError:
        yield ok("no setup/constraints.txt beside the package: versions were not compared")
        return
    found = {name: installed(name) for name in pins}
    others = [
        f"{name} {version} (pinned {pins[name]})"
        for name, version in found.items()
        if version and version.split("+")[0] != pins[name]
    ]
    if others:
        more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
        text = f"other versions than hvdtrain is tested with: {', '.join(others[:LISTED])}{more}"
        yield warn(text, f"{SETUP}, or pip install -c setup/constraints.txt -e .")
    else:
        yield ok(f"all {sum(map(bool, found.values()))} packages have the pinned versions")


def read_pins(text: str) -> dict[str, str]:
    """Name and version of each `name==version` line."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, re.MULTILINE))


def installed(name: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def framework_version(name: str) -> str:
    return next(filter(None, map(installed, DISTRIBUTIONS[name])), "")


def there(name: str) -> bool:
    """Whether Python finds a module of this name; does not import it."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


@check("software", "host")
def check_numpy(setting: Setting) -> Iterator[Finding]:
    """NumPy, and whether MXNet can live with it"""
    version = installed("numpy")
    if not version:
        yield fail("NumPy is not installed", SETUP)
    elif there("mxnet") and tuple(map(int, version.split(".")[:2])) >= NUMPY_LIMIT:
        yield fail(f"NumPy {version} is too new for MXNet 1.9.1, which uses numpy.bool", "pip install 'numpy<1.24'")
    else:
        yield ok(f"NumPy {version}")


@check("software", "host")
def check_frameworks(setting: Setting) -> Iterator[Finding]:
    """each framework imports"""
    missing = [name for name in FRAMEWORKS if not there(name)]
    if len(missing) == len(FRAMEWORKS):
        yield fail("none of the frameworks is installed", SETUP)
        return
    for name in FRAMEWORKS:
        if name in missing:
            yield warn(f"{name} is not installed", f"pip install 'hvdtrain[{EXTRAS[name]}]', then {SETUP} for Horovod")
            continue
        told = setting.framework(name)
        if "framework_error" in told:
            error = told["framework_error"]
            yield fail(f"{name} is installed and does not import ({first_line(error)})", _import_remedy(name, error))
        else:
            yield ok(f"{name} {told['version']}")


def _import_remedy(name: str, error: str) -> str:
    if "numpy" in error and ("has no attribute" in error or "_ARRAY_API" in error):
        return "pip install 'numpy<1.24'"
    if re.search(r"lib(cuda|cudart|cudnn|cublas|nccl|nvrtc)\b", error):
        return f"install the {name} that is built for this machine's CUDA, or for the CPU: see setup/constraints.txt"
    system = re.search(r"lib(quadmath|gomp|gfortran)\.so\.(\d+)", error)
    if system:  # the compiler's libraries, which Debian names with their number
        return f"apt-get install lib{system[1]}{system[2]}"
    if "GLIBC" in error:
        return "use a newer operating system or image: this one's C or C++ library is too old"
    if "SIGILL" in error:
        return f"install a {name} built for this processor"
    return f"pip install --force-reinstall --no-deps -c setup/constraints.txt {DISTRIBUTIONS[name][0]}"
