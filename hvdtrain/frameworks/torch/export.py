"""Networks and models of tasks as programs of torch.export (.pt2), which need PyTorch only."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.config.options import Config
from hvdtrain.frameworks.torch.network import TorchNetwork
from hvdtrain.frameworks.torch.objective import TaskObjective, evaluating, load_module, to_tensor
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.tasks.user import UserTask

METADATA = "metadata.json"
"""Key of the metadata among a program's extra files."""
CORRECT = "export with the code that has trained it"


class _Exported(nn.Module):
    """Takes whole images, as data has them."""

    def __init__(self, network: ShapedNetwork, weights: Weights) -> None:
        super().__init__()
        self.network, self._used_pixels = TorchNetwork(network), network.used_pixels
        load_module(self.network, weights)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = self._used_pixels
        return self.network(images[:, :, :height, :width])


def to_program(network: ShapedNetwork, weights: Weights, metadata: Mapping[str, str]) -> bytes:
    """A program in evaluation mode: logits (n, classes) of float32 `images` (n, channels, height, width), any n."""
    example = torch.zeros(2, *network.input_shape)  # with one row, n would become a constant
    dynamic = {"images": {0: torch.export.Dim("n")}}
    module = _Exported(network, weights)
    with evaluating(module), torch.no_grad():
        program = torch.export.export(module, (example,), dynamic_shapes=dynamic, strict=False)
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={METADATA: json.dumps(dict(metadata))})
    return content.getvalue()


def program_logits(content: bytes, images: np.ndarray) -> np.ndarray:
    """Logits of float32 images by a saved program."""
    with torch.no_grad():
        return torch.export.load(io.BytesIO(content)).module()(torch.from_numpy(images)).numpy()


class TaskModule:
    """The module of a task, in evaluation mode. Its outputs are NumPy arrays by name."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @torch.no_grad()
    def outputs(self, *arrays: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for arrays of n rows."""
        found = self.module(*map(to_tensor, arrays))
        return {f"output {path}".strip(): one.float().numpy() for path, one in _leaves(found)}


class TaskProgram(TaskModule):
    """A program of torch.export, as a file has it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(torch.export.load(io.BytesIO(content)).module())
        self.content = content


def task_module(task: UserTask, weights: Weights) -> TaskModule:
    """The module of a task with these weights. Raises UserError if they are not its own."""
    module = TaskObjective(task, Config()).model
    try:
        load_module(module, weights)
    except ValueError as error:
        raise task.error("model", f"returned another model than that of the checkpoint ({error})", CORRECT) from None
    return TaskModule(module.eval())


def task_program(
    task: UserTask, module: TaskModule, inputs: tuple[np.ndarray, ...], metadata: Mapping[str, str]
) -> TaskProgram:
    """A program that takes inputs like these, of any number of rows. Raises UserError if PyTorch cannot make one."""
    dynamic = tuple({0: torch.export.Dim("n")} for _ in inputs)
    content = io.BytesIO()
    try:
        with torch.no_grad():
            program = torch.export.export(
                module.module, tuple(map(to_tensor, inputs)), dynamic_shapes=dynamic, strict=False
            )
        torch.export.save(program, content, extra_files={METADATA: json.dumps(dict(metadata))})
    except Exception as error:  # of a kind that PyTorch does not document
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise task.error(
            "model", f"returned a module that torch.export cannot follow ({reason:.300})", "change its forward()"
        ) from error
    return TaskProgram(content.getvalue())


def _leaves(outputs: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a module's outputs, and where they are."""
    if isinstance(outputs, torch.Tensor):
        yield path, outputs
    elif isinstance(outputs, Mapping):
        for name, value in outputs.items():
            yield from _leaves(value, f"{path} {name}".strip())
    elif isinstance(outputs, tuple | list):
        for number, value in enumerate(outputs):
            yield from _leaves(value, f"{path} {number}".strip())
