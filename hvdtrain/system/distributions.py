"""Installed packages, from their metadata: nothing is imported."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTIONS = {
    "torch": ("torch",),
    "mxnet": ("mxnet", "mxnet-cu112"),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
"""The packages that contain each framework; the first is the one that hvdtrain's extra installs."""


def installed_version(name: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def framework_distribution(framework: str) -> str:
    """The installed distribution that contains a framework; empty if there is none."""
    return next((name for name in DISTRIBUTIONS[framework] if installed_version(name)), "")


def framework_version(framework: str) -> str:
    """The version of a framework, under whichever of its distributions' names; empty if it is not installed."""
    name = framework_distribution(framework)
    return installed_version(name) if name else ""
