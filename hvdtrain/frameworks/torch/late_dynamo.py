"""Postpones the import of torch._dynamo, the compiler of torch.compile, until something uses it.

Each optimizer of PyTorch imports it, 800 modules with SymPy, to make two calls that do nothing outside of a compiled
step: `graph_break()` in `step`, and `disable(method)` in other methods. `postpone` puts the module into `sys.modules`
without executing it, and answers these two calls. Any other use executes it, in the same object, as its first import
would have: an attribute, a submodule, or torch.compile, which uses its attributes. (So does
torch.distributed.init_process_group where it comes later, and DistributedDataParallel.)

Tried with PyTorch 2.3.1, 2.13.0, 2.14.1 and 2.15.0. Where PyTorch has no such calls, nothing is postponed.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

import torch

NAME = "torch._dynamo"
CALLERS = {"torch.optim.optimizer": "_use_grad_for_differentiable", "torch._compile": "_disable_dynamo"}
"""The modules that make the two calls, and the functions in which they are."""


def postpone() -> None:
    """Postpone the import, unless the module is imported already, or PyTorch does not make the calls."""
    modules = {name: sys.modules.get(name) for name in CALLERS}
    if NAME in sys.modules or not all(hasattr(modules[name], function) for name, function in CALLERS.items()):
        return
    spec = PathFinder.find_spec(NAME, torch.__path__)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    module.__class__ = _Postponed
    sys.meta_path.insert(0, _Importer(module, spec.loader))
    sys.modules[NAME] = module
    torch._dynamo = module


OF_IMPORTS = {f"__{name}__" for name in ("class", "name", "spec", "loader", "package", "path", "file", "cached")}
"""What a module has before it is executed."""


class _Postponed(types.ModuleType):
    """The module before it is executed."""

    def __getattribute__(self, name: str) -> Any:
        if name in OF_IMPORTS:
            return types.ModuleType.__getattribute__(self, name)
        caller = sys._getframe(1).f_globals.get("__name__")
        if (caller, name) in ANSWERS and sys.modules.get(NAME) is self:
            return ANSWERS[caller, name]
        _execute()
        return types.ModuleType.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in OF_IMPORTS:
            _execute()
        types.ModuleType.__setattr__(self, name, value)


def _execute() -> None:
    """Import the module in earnest, once; another thread that already does is waited for, as in each import."""
    for finder in sys.meta_path:
        if isinstance(finder, _Importer):
            finder.end_postponing()
    importlib.import_module(NAME)


class _Importer(MetaPathFinder, Loader):
    """Executes the postponed module when it, or a submodule, is imported in earnest."""

    def __init__(self, module: types.ModuleType, loader: Loader) -> None:
        self._module, self._loader = module, loader
        self._lock, self._is_postponed = threading.Lock(), True
        self._submodules: dict[str, tuple[types.ModuleType, ModuleSpec | None]] = {}

    def end_postponing(self) -> None:
        """Forget the module, so that the next import of it is in earnest."""
        with self._lock:
            if self._is_postponed:
                self._is_postponed = False
                sys.modules.pop(NAME, None)
                vars(torch).pop("_dynamo", None)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == NAME:
            spec = PathFinder.find_spec(name, path)
            assert spec
            spec.loader = self
            return spec
        if not name.startswith(f"{NAME}."):
            return None
        _execute()  # a package comes before its submodules, which it may have imported then
        submodule = sys.modules.get(name)
        if submodule is None:
            return None
        self._submodules[name] = submodule, submodule.__spec__
        # Python now takes the __spec__ of the submodule. With that, it would execute the submodule again.
        spec = vars(submodule)["__spec__"] = spec_from_loader(name, self)
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._submodules[spec.name][0] if spec.name in self._submodules else self._module

    def exec_module(self, module: types.ModuleType) -> None:
        if module is not self._module:
            _, vars(module)["__spec__"] = self._submodules.pop(module.__name__)
            return
        assert module.__spec__
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        module.__class__ = types.ModuleType
        sys.meta_path.remove(self)
        while DISABLED:
            vars(DISABLED.pop()).pop("__dynamo_disable", None)


DISABLED: list[Callable[..., Any]] = []
"""Functions that `_disable` was called with. PyTorch keeps its answer as an attribute of them."""


def _graph_break(*_: Any, **__: Any) -> None:
    """What PyTorch's does outside of a compiled step."""


def _disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """The function itself, until the module is executed."""
    DISABLED.append(function)
    return function


ANSWERS: dict[tuple[Any, str], Callable[..., Any]] = {
    ("torch.optim.optimizer", "graph_break"): _graph_break,
    ("torch._compile", "disable"): _disable,
}
"""What a module gets that asks for an attribute."""
