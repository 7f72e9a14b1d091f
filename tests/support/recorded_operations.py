"""What a CUDA graph does, on the CPU: operations are recorded once, and repeated on the same memory.

A number that Python computed while recording stays as it was; each tensor keeps its memory. So a step that
keeps anything in Python goes wrong here as it would on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hvdtrain.frameworks.torch.step_graph import Captured

FORBIDDEN = {"aten::_local_scalar_dense", "aten::nonzero"}
"""They wait for the device, during which CUDA cannot capture."""
UNDECLARED = {"running_mean", "running_var"}
"""Arguments that batch normalization overwrites without saying so."""


class RecordedOperations:
    """In place of `CudaCapture`. device: as CudaCapture has it."""

    captures = 0
    """How many functions were captured."""
    replays = 0

    def __init__(self, device: str) -> None:
        assert device == "cpu"

    def warm_up(self, function: Any) -> Any:
        return function()

    def capture(self, function: Any) -> Captured:
        with torch.random.fork_rng(devices=[]), _Recorder() as recorder:
            result = function()
        recorder.restore()
        type(self).captures += 1

        def replay() -> None:
            type(self).replays += 1
            with torch.no_grad():
                for operation, arguments, options, outputs in recorder.operations:
                    _repeat(operation, arguments, options, outputs)

        return Captured(replay, result)


def _repeat(operation: Any, arguments: Any, options: Any, outputs: list[torch.Tensor]) -> None:
    found = tree_leaves(operation(*arguments, **options))
    for output, value in zip(outputs, [one for one in found if isinstance(one, torch.Tensor)], strict=True):
        if value.data_ptr() != output.data_ptr() and value.numel():  # else a view, or written in place
            output.copy_(value)


class _Recorder(TorchDispatchMode):
    """Records operations, and what they overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in FORBIDDEN:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        kwargs = kwargs or {}
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        for argument in func._schema.arguments:
            if (argument.alias_info and argument.alias_info.is_write) or argument.name in UNDECLARED:
                self._save(given.get(argument.name))
        result = func(*args, **kwargs)
        outputs = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self.operations.append((func, args, kwargs, outputs))
        self._made |= {one.untyped_storage().data_ptr() for one in outputs} - self._known(args, kwargs)
        return result

    @staticmethod
    def _known(*arguments: Any) -> set[int]:
        return {one.untyped_storage().data_ptr() for one in tree_leaves(arguments) if isinstance(one, torch.Tensor)}

    def _save(self, value: Any) -> None:
        for tensor in tree_leaves(value):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._made and storage.data_ptr() not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                self._before[storage.data_ptr()] = whole, whole.clone()

    def restore(self) -> None:
        """Give what existed before the recording the values that it had."""
        for whole, before in self._before.values():
            whole.copy_(before)
