"""What is installed on a host: versions of packages that affect a result, and the content of hvdtrain's own files."""

from __future__ import annotations

import hashlib
import itertools
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = {
    "torch": ("torch",),
    "mxnet": ("mxnet", "mxnet-cu112"),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
"""The packages that contain each framework; the first is the one that hvdtrain's extra installs."""
EXTRAS = {"torch": "pytorch", "mxnet": "mxnet", "tensorflow": "tensorflow"}
"""The extra of hvdtrain's package that installs each framework."""
PACKAGES = ("hvdtrain", "horovod", *itertools.chain(*DISTRIBUTIONS.values()), "numpy", "mpi4py", "safetensors")
CODE = "the content of hvdtrain's files"


def installed() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result, by name; those not installed are left out.

    Reads their metadata only, without importing them.
    """
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name) or "unknown"
    return found


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
