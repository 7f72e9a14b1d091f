"""What is installed on a host: versions of packages that affect a result, and the content of hvdtrain's own files."""

from __future__ import annotations

import hashlib
import itertools
import platform
from pathlib import Path

from hvdtrain.system import stacks
from hvdtrain.system.distributions import DISTRIBUTIONS, installed_version

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


def installed() -> dict[str, str]:
    """The stack and the versions of Python and of the packages that decide a result, by name.

    Those not installed are left out, as is a stack that is none of set-up's. Reads the packages' metadata only, without
    importing them.
    """
    stack = stacks.installed_stack()
    found = {
        "stack": stack.name if stack else "",
        "python": platform.python_version(),
        **{name: installed_version(name) for name in PACKAGES},
    }
    return {name: value for name, value in found.items() if value}


def here() -> dict[str, str]:
    """What must be identical on all hosts of a job: `installed`, and the content of hvdtrain's own files."""
    return {**installed(), CODE: _digest()}


def _digest() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def difference(one: dict[str, str], other: dict[str, str]) -> str:
    """The differences as text, such as `torch 2.1.0 against none`; empty where there are none."""
    names = [name for name in one | other if one.get(name) != other.get(name)]
    return ", ".join(f"{name} {one.get(name, 'none')} against {other.get(name, 'none')}" for name in names)
