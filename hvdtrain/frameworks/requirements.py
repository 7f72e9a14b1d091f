"""The modules that a framework or a strategy needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from hvdtrain.config.options import Framework
from hvdtrain.errors import UserError
from hvdtrain.system import stacks


def require(modules: Iterable[str], framework: Framework) -> None:
    """Import modules that `framework`, or one of its strategies, needs; raises UserError if one cannot be imported."""
    prepare(framework)
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise _missing(name, framework, error) from None
    if framework == "tensorflow":
        importlib.import_module("hvdtrain.frameworks.tensorflow.versions").check_keras()


def prepare(framework: Framework) -> None:
    """Set what a framework reads when it is imported; call it before anything that may import it."""
    importlib.import_module(f"hvdtrain.frameworks.{framework}")


def _missing(name: str, framework: Framework, error: ImportError) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else "no reason given"
    if name == framework:
        why = stacks.why_missing(framework)
        command = stacks.setup_command(stacks.stack_with(framework))
        return UserError(
            f"{framework} cannot be imported ({reason})" + (f": it {why}" if why else ""), f"run: {command}"
        )
    if name == "mpi4py.MPI":
        return UserError(f"mpi4py cannot be imported ({reason})", "run: make setup, which installs it and an MPI")
    try:
        importlib.import_module("horovod")
    except ImportError:
        return UserError("Horovod is not installed", "run: make setup, or train one process with --strategy single")
    return UserError(
        f"Horovod was built without {framework} ({reason})",
        "run: make setup, which builds it for the frameworks that are installed",
    )
