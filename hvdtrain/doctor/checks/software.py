"""Python, NumPy and the frameworks: installed, importable, and in versions that are tested or fit together."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from hvdtrain.doctor.check import Finding, check, fail, ok, warn
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.quick import has_module, old_numpy
from hvdtrain.doctor.subprocesses import first_line
from hvdtrain.system import stacks
from hvdtrain.system.stacks import (
    DISTRIBUTIONS,
    STACKS,
    TITLES,
    framework_version,
    installed_version,
    public_version,
)

FRAMEWORKS = tuple(DISTRIBUTIONS)
"""In the order in which a check tries them."""
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
"""Environment variable by which TensorFlow uses tf-keras, with the interface of Keras 2, as tf.keras."""


def first_loadable(context: CheckContext) -> str:
    """The first framework for which Horovod loads, without trying the others; empty if there is none."""
    installed = [name for name in FRAMEWORKS if has_module("horovod") and has_module(name)]
    return next((name for name in installed if "built" in context.framework(name)), "")


def built(context: CheckContext) -> dict[str, Any]:
    """What Horovod was built with: `gloo`, `mpi`, `nccl` (its version); empty if Horovod does not load."""
    name = first_loadable(context)
    return dict(context.framework(name)["built"]) if name else {}


@check("software", "host")
def check_stack(context: CheckContext) -> Iterator[Finding]:
    """the stack that this environment is, and its versions in one line"""
    frameworks = stacks.installed_frameworks()
    if not frameworks:
        return  # the check `frameworks` reports it
    stack = stacks.installed_stack()
    contents = ", ".join(_contents(context, frameworks))
    if stack is None:
        text = f"none of the stacks {', '.join(STACKS)}, so not tested: {contents}"
        yield warn(text, stacks.setup_command(stacks.stack_for_this_python()))
        return
    others = " and ".join(TITLES[name] for name in frameworks if name not in stack.frameworks)
    yield ok(f"stack {stack.name}: {contents}" + (f"; {others} is not part of this stack" if others else ""))


def _contents(context: CheckContext, frameworks: tuple[str, ...]) -> Iterator[str]:
    yield f"Python {platform.python_version()}"
    for name in frameworks:
        yield f"{TITLES[name]} {framework_version(name)}"
    if version := installed_version("numpy"):
        yield f"NumPy {version}"
    if version := public_version("horovod"):
        has = built(context)
        parts = [label for label, what in (("Gloo", "gloo"), ("MPI", "mpi"), ("NCCL", "nccl")) if has and has[what]]
        yield f"Horovod {version}" + (f" ({', '.join(parts)})" if parts else "")
    else:
        yield "no Horovod"


@check("software", "host")
def check_packages(context: CheckContext) -> Iterator[Finding]:
    """the packages that hvdtrain requires can be imported"""
    program = f"for name in {stacks.REQUIRED}: print(name, flush=True); __import__(name)"
    completed = context.once("packages", lambda: context.run([sys.executable, "-c", program], 60))
    if completed.status == 0:
        yield ok(f"{', '.join(stacks.REQUIRED)} can be imported")
    else:
        name = [stacks.REQUIRED[0], *completed.out.split()][-1]
        yield fail(f"{name} cannot be used ({completed.reason()})", stacks.package_remedy(name))


@check("software", "host")
def check_frameworks(context: CheckContext) -> Iterator[Finding]:
    """each framework of the stack can be imported"""
    missing = [name for name in FRAMEWORKS if not has_module(name)]
    if len(missing) == len(FRAMEWORKS):
        yield fail("none of the frameworks is installed", stacks.repair_command())
        return
    answers = context.frameworks([name for name in FRAMEWORKS if name not in missing])
    for name in FRAMEWORKS:
        if name in missing:
            yield _missing(name)
            continue
        answer = answers[name]
        if "framework_error" in answer:
            error = answer["framework_error"]
            text = f"{name} is installed but cannot be imported ({first_line(error)})"
            (of_packages,) = check_packages(context)
            yield fail(text, of_packages.remedy or _import_remedy(name, error))
        elif "numpy_error" in answer:
            text = f"{name} {answer['version']} cannot use NumPy {installed_version('numpy')} ({answer['numpy_error']})"
            yield fail(text, stacks.repair_command())
        else:
            yield ok(f"{name} {answer['version']}")


def _missing(name: str) -> Finding:
    if why := stacks.why_missing(name):  # on purpose
        return ok(f"{name} {why}: {stacks.setup_command(stacks.stack_with(name))}")
    return warn(f"{name} is not installed, but part of the stack", stacks.repair_command())


def _import_remedy(name: str, error: str) -> str:
    if "numpy" in error and ("has no attribute" in error or "_ARRAY_API" in error):
        return old_numpy() if name == "mxnet" else stacks.repair_command()
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


@check("software", "host")
def check_requirements(context: CheckContext) -> Iterator[Finding]:
    """the packages that hvdtrain and a framework require, in the versions that their own metadata asks for"""
    names = [name for names in (("hvdtrain",), *DISTRIBUTIONS.values()) for name in names if installed_version(name)]
    try:
        problems = [problem for name in names for problem in unmet(name)]
    except ImportError:
        yield warn("requirements were not compared: the package packaging is not installed", "pip install packaging")
        return
    for problem in problems:
        yield warn(problem, stacks.repair_command())
    if names and not problems:
        yield ok(f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} the packages that they require")


def unmet(distribution: str) -> Iterator[str]:
    """Sentences on packages that an installed distribution requires in another version. Raises ImportError."""
    from packaging.requirements import Requirement

    for text in metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        if version and not requirement.specifier.contains(version, prereleases=True):
            by = f"{distribution} {installed_version(distribution)}"
            yield f"{by} requires {requirement.name}{requirement.specifier}, but {version} is installed"


@check("software", "host")
def check_keras(context: CheckContext) -> Iterator[Finding]:
    """TensorFlow has Keras: its own, or tf-keras of the same version where TF_USE_LEGACY_KERAS asks for it"""
    version = framework_version("tensorflow")
    keras, legacy = installed_version("keras"), installed_version("tf-keras")
    if not version:
        return
    asked = os.environ.get(LEGACY_KERAS, "") in ("1", "true", "True")  # what TensorFlow itself accepts
    if not keras or _minor(keras) < (3,) or not asked:
        yield ok(f"TensorFlow {version} has Keras {keras}" if keras else f"TensorFlow {version} without Keras")
        return
    release = ".".join(version.split(".")[:2])
    # It requires the package tensorflow, whose files would overwrite those of tensorflow-cpu.
    remedy = f"pip install --no-deps 'tf-keras=={release}.*'"
    if not legacy:
        text = f"{LEGACY_KERAS}={os.environ[LEGACY_KERAS]} asks for Keras 2: tf-keras is not installed"
        yield fail(text, f"unset {LEGACY_KERAS}, or {remedy}")
    elif _minor(legacy) != _minor(version):
        age = "old" if _minor(legacy) < _minor(version) else "new"
        yield fail(f"tf-keras {legacy} is too {age} for TensorFlow {version}, which needs tf-keras {release}", remedy)
    else:
        yield ok(f"TensorFlow {version} uses tf-keras {legacy}, with the interface of Keras 2")


def _minor(version: str) -> tuple[int, ...]:
    return stacks.numbers(version)[:2]
