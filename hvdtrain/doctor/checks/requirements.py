"""What packages require of each other: which one is too new or too old for which."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.software import has_module
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.system import stacks
from hvdtrain.system.stacks import DISTRIBUTIONS, framework_version, installed_version

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
"""Environment variable by which TensorFlow uses tf-keras, with the interface of Keras 2, as tf.keras."""


@check("software", "host")
def check_requirements(context: CheckContext) -> Iterator[Finding]:
    """packages that are too new or too old for a framework, by what its own metadata requires"""
    names = [name for names in DISTRIBUTIONS.values() for name in names if installed_version(name)]
    try:
        problems = [problem for name in names for problem in unmet(name)]
    except ImportError:
        yield warn("requirements were not compared: the package packaging is not installed", "pip install packaging")
        return
    for problem in problems:
        yield warn(problem, stacks.repair_command())
    if names and not problems:
        yield ok(f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} the packages that they require")
    yield from _tensorboard()


def unmet(distribution: str) -> Iterator[str]:
    """Sentences on packages that an installed distribution requires in another version. Raises ImportError."""
    from packaging.requirements import Requirement

    for text in metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        if version and not requirement.specifier.contains(version, prereleases=True):
            needs = (
                f"{distribution} {installed_version(distribution)} requires {requirement.name}{requirement.specifier}"
            )
            yield f"{requirement.name} {version} is {_direction(requirement.specifier, version)}: {needs}"


def _direction(specifier: object, version: str) -> str:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    assert isinstance(specifier, SpecifierSet)
    violated = [one for one in specifier if not one.contains(version, prereleases=True)]
    limits = [Version(one.version.removesuffix(".*")) for one in violated]
    return "too old" if all(Version(version) < limit for limit in limits) else "too new"


def _tensorboard() -> Iterator[Finding]:
    """TensorBoard without pkg_resources, which new versions of setuptools no longer have."""
    if not installed_version("tensorboard") or has_module("pkg_resources") or not _uses_pkg_resources():
        return
    board, tools = installed_version("tensorboard"), installed_version("setuptools")
    text = (
        f"setuptools {tools} is too new for TensorBoard {board}, which imports pkg_resources"
        if tools
        else f"setuptools is not installed, and TensorBoard {board} imports its pkg_resources"
    )
    yield warn(text, "pip install 'setuptools<81'")


def _uses_pkg_resources() -> bool:
    spec = importlib.util.find_spec("tensorboard")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0], "default.py") if folders else None
    return bool(path and path.is_file() and "import pkg_resources" in path.read_text(errors="replace"))


@check("software", "host")
def check_keras(context: CheckContext) -> Iterator[Finding]:
    """TensorFlow has Keras 2, which Horovod needs: in itself, or as tf-keras of the same version"""
    version = framework_version("tensorflow")
    keras, legacy = installed_version("keras"), installed_version("tf-keras")
    if not version:
        return
    if not keras or _minor(keras) < (3,):  # then tf.keras is Keras 2
        yield ok(f"TensorFlow {version} has Keras {keras}" if keras else f"TensorFlow {version} without Keras")
        return
    release = ".".join(version.split(".")[:2])
    # It requires the package tensorflow, whose files would overwrite those of tensorflow-cpu.
    remedy = f"pip install --no-deps 'tf-keras=={release}.*'"
    if not legacy:
        text = f"TensorFlow {version} has Keras {keras}, and Horovod needs Keras 2: tf-keras is not installed"
        yield fail(text, remedy)
    elif _minor(legacy) != _minor(version):
        age = "old" if _minor(legacy) < _minor(version) else "new"
        yield fail(f"tf-keras {legacy} is too {age} for TensorFlow {version}, which needs tf-keras {release}", remedy)
    elif os.environ.get(LEGACY_KERAS, "1") not in ("1", "true", "True"):  # what TensorFlow itself accepts
        text = f"{LEGACY_KERAS}={os.environ[LEGACY_KERAS]} selects Keras {keras}, and Horovod needs Keras 2"
        yield fail(text, f"unset {LEGACY_KERAS}")
    else:
        yield ok(f"TensorFlow {version} uses tf-keras {legacy}, with the interface of Keras 2")


def _minor(version: str) -> tuple[int, ...]:
    """Major and minor version."""
    return stacks.numbers(version)[:2]
