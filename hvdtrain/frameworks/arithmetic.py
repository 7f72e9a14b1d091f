"""How a framework that is imported is held at the threads, instruction set and determinism that the options ask for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.system import arithmetic


def settle(config: Config, runtime: RuntimeOptions) -> None:
    """Set what only the framework's own functions set, and what variables came too late for; before it computes.

    Raises UserError if that is impossible.
    """
    count = arithmetic.fixed_threads(config.threads, config.shards)
    if count or config.isa != "auto":
        _module(config.framework).settle(count, config.isa)
    if config.shards:
        _module(config.framework).make_deterministic(count, runtime.device != "cpu")


def threads(framework: Framework) -> int:
    """The threads that compute an operation."""
    return _module(framework).threads() if framework in sys.modules else arithmetic.threads_by_variables()


def _module(framework: Framework) -> Any:
    """That of the framework's folder."""
    return importlib.import_module(f"hvdtrain.frameworks.{framework}.arithmetic")
