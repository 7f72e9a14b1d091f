"""Networks and models of tasks as programs of torch.export (.pt2), which need PyTorch only."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from hvdtrain.config.options import Config
from hvdtrain.frameworks.torch.network import TorchNetwork, load_module
from hvdtrain.frameworks.torch.objective import TorchTaskObjective, to_tensor, widened
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.tasks.user import UserTask

METADATA = "metadata.json"
"""Key of the metadata among a program's extra files."""


class WholeImages(nn.Module):
    """A network that takes whole images, as data has them: float32 `images` (n, channels, height, width)."""

    def __init__(self, network: ShapedNetwork, weights: Weights) -> None:
        super().__init__()
        self.network, self._used_pixels = TorchNetwork(network), network.used_pixels
        load_module(self.network, weights)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = self._used_pixels
        return self.network(images[:, :, :height, :width])


def task_module(task: UserTask, weights: Weights) -> nn.Module:
    """The module of a task with these weights. Raises UserError if they are not its own."""
    module = TorchTaskObjective(task, Config()).model
    try:
        load_module(module, weights)
    except ValueError as error:
        problem = f"returned another model than that of the checkpoint ({error})"
        raise task.error("model", problem, "use the code that has trained it") from None
    return module


def to_program(module: nn.Module, inputs: tuple[np.ndarray, ...], metadata: Mapping[str, str]) -> bytes:
    """A program of the module in evaluation mode, for inputs like these, of at least two rows, but of any number.

    Raises an error of any kind if PyTorch cannot make one: the kinds are not documented.
    """
    dynamic = tuple({0: torch.export.Dim("n")} for _ in inputs)
    content = io.BytesIO()
    with torch.no_grad():
        arguments = tuple(map(to_tensor, inputs))
        program = torch.export.export(module.eval(), arguments, dynamic_shapes=dynamic, strict=False)
    torch.export.save(program, content, extra_files={METADATA: json.dumps(dict(metadata))})
    return content.getvalue()


def program_outputs(content: bytes, *arrays: np.ndarray) -> dict[str, np.ndarray]:
    """`module_outputs` of a saved program."""
    return module_outputs(torch.export.load(io.BytesIO(content)).module(), *arrays)


@torch.no_grad()
def module_results(module: nn.Module, *arrays: np.ndarray) -> Any:
    """What the module returns for arrays of n rows, with arrays in the place of tensors."""
    return tree_map(_as_array, widened(module(*map(to_tensor, arrays))))


def _as_array(output: Any) -> Any:
    return output.numpy() if isinstance(output, torch.Tensor) else output


@torch.no_grad()
def module_outputs(module: nn.Module, *arrays: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs for arrays of n rows, by where they are: `output`, or `output 0` and so on."""
    outputs = module(*map(to_tensor, arrays))
    return {f"output {path}".strip(): tensor.numpy() for path, tensor in _leaves(widened(outputs))}


def _leaves(outputs: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a module's outputs, and where they are."""
    if isinstance(outputs, torch.Tensor):
        yield path, outputs
    elif isinstance(outputs, Mapping | tuple | list):
        parts = outputs.items() if isinstance(outputs, Mapping) else enumerate(outputs)
        for name, value in parts:
            yield from _leaves(value, f"{path} {name}".strip())
