"""Installed packages, from their metadata: nothing is imported."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = {
    "torch": ("torch",),
    "mxnet": ("mxnet", "mxnet-cu112"),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
"""The packages that contain each framework; the first is the one that hvdtrain's extra installs."""
SYSTEM_TORCH = "hvdtrain-system-torch"
"""Folder in which set-up links the machine's own PyTorch and what it requires, with USE_SYSTEM_TORCH=1."""


def installed_version(name: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def public_version(name: str) -> str:
    """The same without the suffix that names a build, such as +cpu."""
    return installed_version(name).partition("+")[0]


def is_system_s(name: str) -> bool:
    """Whether a distribution is the machine's own, which set-up uses as it is."""
    try:
        return Path(str(metadata.distribution(name).locate_file(""))).name == SYSTEM_TORCH
    except metadata.PackageNotFoundError:
        return False


def framework_distribution(framework: str) -> str:
    """The installed distribution that contains a framework; empty if there is none. Reads no file of it."""
    return next((name for name in DISTRIBUTIONS[framework] if _is_installed(name)), "")


def _is_installed(name: str) -> bool:
    with suppress(metadata.PackageNotFoundError):
        return bool(metadata.distribution(name))
    return False


def framework_version(framework: str) -> str:
    """The version of a framework, under whichever of its distributions' names; empty if it is not installed."""
    name = framework_distribution(framework)
    return installed_version(name) if name else ""
