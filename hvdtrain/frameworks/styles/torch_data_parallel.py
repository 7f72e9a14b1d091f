"""torch.nn.DataParallel, and what does the same over parts of the CPU."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from hvdtrain.collectives.groups import single_process
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.devices import count_devices
from hvdtrain.frameworks.torch.strategies import TorchStrategy
from hvdtrain.interfaces import DEVICES_NORMALIZE, Unsupported


def _gathered(outputs: list[Any]) -> Any:
    """The outputs of replicas as one: tensors are concatenated, in mappings and sequences too, as DataParallel does."""
    first: Any = outputs[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(outputs)
    if isinstance(first, Mapping):
        return {name: _gathered([one[name] for one in outputs]) for name in first}
    values = [_gathered(list(parts)) for parts in zip(*outputs, strict=True)]
    return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)


class CPUReplicas(nn.Module):
    """DataParallel's four steps over parts of the CPU, for which torch.nn.DataParallel itself does not work.

    As in DataParallel, the replicas' forward passes run in separate threads. On a CPU, PyTorch runs backward in one
    thread.
    """

    def __init__(self, model: nn.Module, devices: int) -> None:
        super().__init__()
        self.model = model
        self._bodies = [copy.deepcopy(model) for _ in range(devices)]
        self._threads = ThreadPoolExecutor(devices)

    def forward(self, *inputs: torch.Tensor) -> Any:
        if not self.training:  # the replicas do not get the modes of the modules
            return self.model(*inputs)
        scattered = list(zip(*(one.tensor_split(len(self._bodies)) for one in inputs), strict=True))
        # The gradient of a clone is added to that of the original parameter, as in DataParallel's broadcast.
        replicas = [{name: p.clone() for name, p in self.model.named_parameters()} for _ in scattered]
        replicas[0] |= dict(self.model.named_buffers())  # which the first replica updates, as in DataParallel
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        applied = self._threads.map(functools.partial(self._apply, dtype), self._bodies, replicas, scattered)
        return _gathered(list(applied))

    @staticmethod
    def _apply(
        dtype: torch.dtype | None, body: nn.Module, parameters: dict[str, torch.Tensor], part: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):  # threads do not inherit autocast
            return torch.func.functional_call(body, parameters, part)


class TorchDataParallel(TorchStrategy):
    """torch.nn.DataParallel: scatters each batch over the GPUs of one process, or over parts of the CPU."""

    unsupported = (
        Unsupported("compile", (False,), "DataParallel copies the network to threads in each step"),
        DEVICES_NORMALIZE,
    )
    many_devices = True
    captures = ""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = torch.cuda.device_count() if runtime.device != "cpu" else 0
        super().__init__(config, runtime, single_process(config.strategy), count_devices(runtime.devices, gpus))

    def wrap_model(self, model: nn.Module, device: str, finds_unused: bool = False) -> nn.Module:
        if device != "cpu":
            return nn.DataParallel(model, list(range(self.devices)))
        if not self.runtime.quiet:
            print(
                "torch.nn.DataParallel supports GPUs only: scatter, replicate, apply and gather run over "
                f"{self.devices} parts of the CPU, and backward in one thread",
                file=sys.stderr,
            )
        return CPUReplicas(model, self.devices)
