"""Postpones the import of torch._dynamo, the compiler of torch.compile, until something uses it.

Each optimizer of PyTorch imports it, 800 modules with SymPy, to make two calls that do nothing outside of a compiled
step: `graph_break()` in `step`, and `disable(method)` in other methods. `postpone` puts a module of the same name into
`sys.modules`, which answers these two calls. Any other use of it imports the real one, and passes on to that: of an
attribute, a submodule, or torch.compile, which uses its attributes. (So does torch.distributed.init_process_group where
it comes later, and DistributedDataParallel.)

Tried with PyTorch 2.3.1, 2.13.0, 2.14.1 and 2.15.0. Where PyTorch has no such calls, nothing is postponed.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

import torch

NAME = "torch._dynamo"
CALLERS = {"torch.optim.optimizer": "_use_grad_for_differentiable", "torch._compile": "_disable_dynamo"}
"""The modules that make the two calls, and the functions in which they are."""
DISABLED: list[Callable[..., Any]] = []
"""Functions that `_disable` was called with. PyTorch keeps its answer as an attribute of them."""
LOCK = threading.Lock()


def postpone() -> None:
    """Postpone the import, unless the module is imported already, or PyTorch does not make the calls."""
    modules = {name: sys.modules.get(name) for name in CALLERS}
    if NAME in sys.modules or not all(hasattr(modules[name], function) for name, function in CALLERS.items()):
        return
    if spec := PathFinder.find_spec(NAME, torch.__path__):
        module = module_from_spec(spec)
        module.__class__ = _Postponed
        sys.meta_path.insert(0, _Submodules())
        sys.modules[NAME] = torch._dynamo = module


class _Postponed(types.ModuleType):
    """Has the place of the module before its first use."""

    def __getattr__(self, name: str) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__")
        if (caller, name) in ANSWERS and sys.modules.get(NAME) is self:
            return ANSWERS[caller, name]
        return getattr(_real_module(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_real_module(), name, value)

    def __dir__(self) -> list[str]:
        return dir(_real_module())


def _real_module() -> types.ModuleType:
    """Import the module; another thread that already does is waited for, as in each import."""
    with LOCK:
        if isinstance(sys.modules.get(NAME), _Postponed):
            del sys.modules[NAME], torch._dynamo
    module = importlib.import_module(NAME)
    while DISABLED:
        vars(DISABLED.pop()).pop("__dynamo_disable", None)
    return module


class _Submodules(MetaPathFinder, Loader):
    """Imports the package before a submodule, which it may import by itself: Python would then execute that again."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, path: Any, target: types.ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}.") or not isinstance(sys.modules.get(NAME), _Postponed):
            return None
        _real_module()
        if name not in sys.modules:
            return None
        self._specs[name] = sys.modules[name].__spec__
        return spec_from_loader(name, self)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._specs.pop(module.__name__)


def _graph_break(*_: Any, **__: Any) -> None:
    """What PyTorch's does outside of a compiled step."""


def _disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """The function itself, until the module is imported."""
    DISABLED.append(function)
    return function


ANSWERS: dict[tuple[Any, str], Callable[..., Any]] = {
    ("torch.optim.optimizer", "graph_break"): _graph_break,
    ("torch._compile", "disable"): _disable,
}
"""What a module gets that asks for an attribute."""
