"""Installed packages, from their metadata: nothing is imported."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = {
    "torch": ("torch",),
    "mxnet": ("mxnet", "mxnet-cu112"),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
"""The packages that contain each framework; the first is the one that hvdtrain's extra installs."""
SYSTEM_PACKAGES = re.compile(r"^include-system-site-packages\s*=\s*true", re.MULTILINE | re.IGNORECASE)
"""The line of pyvenv.cfg with which a virtual environment uses the packages of the machine's own Python, too."""


def installed_version(name: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def public_version(name: str) -> str:
    """The same without the suffix that names a build, such as +cpu."""
    return installed_version(name).partition("+")[0]


def is_the_machines(name: str) -> bool:
    """Whether a distribution comes from the machine's own Python, which a virtual environment may use."""
    if not SYSTEM_PACKAGES.search(_settings()):
        return False
    try:
        return not Path(str(metadata.distribution(name).locate_file(""))).is_relative_to(sys.prefix)
    except metadata.PackageNotFoundError:
        return False


def _settings() -> str:
    with suppress(OSError):
        return Path(sys.prefix, "pyvenv.cfg").read_text()
    return ""


def framework_distribution(framework: str) -> str:
    """The installed distribution that contains a framework; empty if there is none."""
    return next((name for name in DISTRIBUTIONS[framework] if installed_version(name)), "")


def framework_version(framework: str) -> str:
    """The version of a framework, under whichever of its distributions' names; empty if it is not installed."""
    name = framework_distribution(framework)
    return installed_version(name) if name else ""
