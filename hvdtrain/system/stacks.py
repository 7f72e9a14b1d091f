"""What is installed on a host: packages and their versions, and the stack that they form.

A stack is a set of frameworks that work together, and their Pythons; set-up installs one of them. Packages are known
from their metadata: nothing is imported.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import re
import shlex
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UserError

DISTRIBUTIONS = {
    "torch": ("torch",),
    "mxnet": ("mxnet", "mxnet-cu112"),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
"""The packages that contain each framework; the first is the one that hvdtrain's extra installs."""
TITLES: dict[str, str] = {"mxnet": "MXNet", "torch": "PyTorch", "tensorflow": "TensorFlow"}


def installed_version(name: str) -> str:
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def public_version(name: str) -> str:
    """The version without the suffix that names a build, such as +cpu."""
    return installed_version(name).partition("+")[0]


def framework_distribution(framework: str) -> str:
    """The installed distribution that contains a framework; empty if there is none. Reads no file of it."""
    for name in DISTRIBUTIONS[framework]:
        with suppress(metadata.PackageNotFoundError):
            metadata.distribution(name)
            return name
    return ""


def framework_version(framework: str) -> str:
    """The version of a framework, under whichever of its distributions' names; empty if it is not installed."""
    name = framework_distribution(framework)
    return installed_version(name) if name else ""


MARKER = ".hvdtrain-stack"
"""File of an environment with the name of its stack, which set-up writes."""
STAMPS = (".hvdtrain-setup", ".hvdtrain-horovod")
"""Files of an environment without which set-up installs all of it again, and Horovod again."""


@dataclass(frozen=True)
class Stack:
    """What `make setup STACK=name` installs. A test compares it with setup/stacks/<name>/stack.conf."""

    name: str
    pythons: tuple[str, ...]
    """Versions such as 3.12, the preferred one first."""
    frameworks: tuple[str, ...]


STACKS = {
    stack.name: stack
    for stack in (
        Stack("all", ("3.11", "3.10"), ("torch", "mxnet", "tensorflow")),
        Stack("pytorch", ("3.14", "3.13", "3.12", "3.11", "3.10"), ("torch",)),
        Stack("tensorflow", ("3.13", "3.12", "3.11", "3.10"), ("tensorflow",)),
    )
}


def running_python() -> str:
    """The version of the Python that runs, such as 3.12."""
    return "{}.{}".format(*sys.version_info[:2])


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, to compare it with another: 3.12 is newer than 3.9."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def installed_frameworks() -> tuple[str, ...]:
    """The frameworks of which a distribution is installed, importable or not."""
    return tuple(filter(framework_distribution, DISTRIBUTIONS))


def installed_stack() -> Stack | None:
    """The stack of this environment: the one that set-up recorded, else the one whose frameworks are installed.

    None without a framework, and for a mixture that is none of the stacks.
    """
    with suppress(OSError, KeyError):
        return STACKS[Path(sys.prefix, MARKER).read_text().strip()]
    frameworks = installed_frameworks()
    if "mxnet" in frameworks:  # it decides the versions of all others
        return STACKS["all"]
    return next((stack for stack in STACKS.values() if stack.frameworks == frameworks), None)


def setup_command(stack: Stack) -> str:
    """The command that sets up a stack, with a Python for it if the one that runs is not supported."""
    python = "" if running_python() in stack.pythons else f" BASE_PYTHON={stack.pythons[0]}"
    return f"make setup STACK={stack.name}{python}"


def repair_command() -> str:
    """The command that installs this environment's packages and Horovod again, as its stack has them."""
    stack = installed_stack() or stack_for_this_python()
    stamps = [str(path) for name in STAMPS if (path := Path(sys.prefix, name)).exists()]
    if not stamps:
        return setup_command(stack)
    # Without its stamps, as set-up would find the environment up to date.
    checkout = Path(__file__).parents[2]
    venv = "" if Path(sys.prefix) == checkout / ".venv" else f" VENV={shlex.quote(sys.prefix)}"
    return f"rm -f {' '.join(map(shlex.quote, stamps))} && {setup_command(stack)}{venv}"


def stack_with(framework: str) -> Stack:
    """The stack to set up for a framework: this environment's if it has it, else one for the Python that runs."""
    installed = installed_stack()
    if installed and framework in installed.frameworks:
        return installed
    having = [stack for stack in STACKS.values() if framework in stack.frameworks]
    return next((stack for stack in having if running_python() in stack.pythons), having[0])


def stack_for_this_python() -> Stack:
    """The stack to set up for the Python that runs, with a framework that is installed if there is one."""
    fitting = [stack for stack in STACKS.values() if running_python() in stack.pythons] or [STACKS["pytorch"]]
    return next((stack for stack in fitting if set(stack.frameworks) & set(installed_frameworks())), fitting[0])


def pythons_of(framework: str) -> tuple[str, ...]:
    """The Pythons of all stacks that have a framework, the newest first."""
    pythons = {python for stack in STACKS.values() if framework in stack.frameworks for python in stack.pythons}
    return tuple(sorted(pythons, key=numbers, reverse=True))


def listed(pythons: tuple[str, ...]) -> str:
    """Versions of Python in a sentence, such as `3.10 or 3.11`."""
    oldest_first = sorted(pythons, key=numbers)
    if len(oldest_first) > 2:
        return f"{oldest_first[0]} to {oldest_first[-1]}"
    return " or ".join(oldest_first)


def why_missing(framework: str) -> str:
    """Why this environment does not have a framework, as the end of a sentence; empty if it should have it."""
    stack = installed_stack()
    if stack and framework in stack.frameworks:
        return ""
    reasons = [f"is not part of the stack {stack.name}"] if stack else []
    if running_python() not in (pythons := pythons_of(framework)):
        reasons.append(f"needs Python {listed(pythons)}")
    return " and ".join(reasons)


REQUIRED = ("numpy", "rich", "requests", "filelock", "safetensors", "PIL", "msgspec")
"""The modules that hvdtrain cannot do without."""


def known_error(error: Exception) -> HvdtrainError | None:
    """An error that one line explains: this one, or that of a required package that is missing or broken; else None."""
    if isinstance(error, HvdtrainError):
        return error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    roots = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    modules = [root for root, frame in zip(roots, frames, strict=True) if frame.f_code.co_name == "<module>"]
    importer = next((root for root in reversed(roots) if root != "importlib"), "")
    # A user's own code may import a name that a package does not have.
    if isinstance(error, ImportError) and importer in ("hvdtrain", *REQUIRED):
        modules.append((error.name or "").partition(".")[0])
    name = next((root for root in reversed(modules) if root in REQUIRED), "")
    reason = str(error).strip().rpartition("\n")[2] or type(error).__name__  # NumPy gives a page of advice before it
    return UserError(f"{name} cannot be used ({reason})", package_remedy(name)) if name else None


def package_remedy(module: str) -> str:
    """The command that installs a required package, or installs it again."""
    name = {"PIL": "pillow"}.get(module, module)
    if version := installed_version(name):
        return f"python -m pip install --force-reinstall --no-deps {name}=={version}"
    return f"{repair_command()}, then source .venv/bin/activate" if sys.prefix == sys.base_prefix else repair_command()


PACKAGES = (
    "hvdtrain",
    "horovod",
    *itertools.chain(*DISTRIBUTIONS.values()),
    "tf-keras",
    "numpy",
    "mpi4py",
    "safetensors",
)
CODE = "the content of hvdtrain's files"


def installed_versions() -> dict[str, str]:
    """The stack and the versions of Python and of the packages that decide a result, by name.

    Those not installed are left out, as is a stack that is none of set-up's. Reads the packages' metadata only, without
    importing them.
    """
    stack = installed_stack()
    versions = {
        "stack": stack.name if stack else "",
        "python": platform.python_version(),
        **{name: installed_version(name) for name in PACKAGES},
    }
    return {name: value for name, value in versions.items() if value}


def deciding_versions(framework: str) -> dict[str, str]:
    """Of `installed_versions`, those that decide the bits of a training in one framework."""
    names = ("hvdtrain", *DISTRIBUTIONS[framework], *(("tf-keras",) if framework == "tensorflow" else ()), "numpy")
    return {name: value for name in names if (value := installed_version(name))}


def versions_here() -> dict[str, str]:
    """What must be identical on all hosts of a job: `installed_versions`, and the content of hvdtrain's own files."""
    return {**installed_versions(), CODE: _digest()}


def _digest() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def version_difference(there: dict[str, str], here: dict[str, str]) -> str:
    """The differences as text, such as `torch 2.1.0 against none`; empty where there are none."""
    names = [name for name in there | here if there.get(name) != here.get(name)]
    return ", ".join(f"{name} {there.get(name, 'none')} against {here.get(name, 'none')}" for name in names)
