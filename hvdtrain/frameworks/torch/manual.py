"""Data parallelism by hand in PyTorch: several devices in one process, and nothing but tensors.

What Dive into Deep Learning builds in "Training on Multiple GPUs": copy the parameters to each device, split the
batch, compute gradients on each, add them up on the first device, copy the sum back to all, and let each device make
the same update.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.collectives import groups
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import count_devices
from hvdtrain.frameworks.torch.learner import module
from hvdtrain.interfaces import OptimizerState
from hvdtrain.networks.description import Network, Weights

Tensors = dict[str, torch.Tensor]


class Manual:
    """Allreduce and SGD by hand over several devices of one process (cuda:i, or parts of the CPU)."""

    needs: tuple[str, ...] = ()
    lacks = (
        ("optimizer", "sgd", "the hand-written update is SGD"),
        ("precision", "fp32", "the hand-written step is plain fp32"),
        ("accumulate", 1, "the hand-written step takes a batch at once"),
        ("clip_norm", 0.0, "the hand-written update does not clip"),
        ("on_nan", "stop", "the hand-written update skips nothing"),
    )
    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = torch.cuda.device_count() if runtime.device != "cpu" else 0
        self.group = groups.single_process(config.strategy)
        self.devices = [f"cuda:{i}" if gpus else "cpu" for i in range(count_devices(runtime.devices, gpus))]


STRATEGIES = {"manual": Manual}


def build(
    config: Config, network: Network, weights: Weights, strategy: Manual, runtime: RuntimeOptions
) -> ManualLearner:
    """The learner of `config`, at its first weights."""
    return ManualLearner(config, network, weights, strategy)


def get_params(weights: Weights, device: str) -> Tensors:
    """Copy the parameters to one device."""
    return {name: torch.tensor(value, device=device, requires_grad=True) for name, value in weights.items()}


def split_batch(devices: list[str], *arrays: np.ndarray) -> list[list[torch.Tensor]]:
    """Cut each array into equal parts, and load one on each device: [device][array]."""
    rows, count = len(arrays[0]), len(devices)
    if rows % count:
        raise UserError(f"a batch of {rows} rows does not divide among {count} devices; change --batch-size")
    parts = zip(*(np.split(array, count) for array in arrays), strict=True)
    return [[torch.from_numpy(part).to(device) for part in own] for own, device in zip(parts, devices, strict=True)]


def allreduce(data: list[torch.Tensor]) -> None:
    """Add up on the first device, and copy the sum back to all; `data` holds one tensor a device."""
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for other in data[1:]:
        other.copy_(data[0])


class ManualLearner:
    """The network as a function of parameters that lie on each device."""

    def __init__(self, config: Config, network: Network, weights: Weights, strategy: Manual) -> None:
        self.group, self._devices, self._config = strategy.group, strategy.devices, config
        self.device, self.devices, self.skipped = self._devices[0], len(self._devices), 0
        self._network = module(network)
        self.load(weights)
        self._momentum = [{n: torch.zeros_like(p) for n, p in params.items()} for params in self._params]

    def _forward(self, params: Tensors, images: torch.Tensor) -> torch.Tensor:
        x = images / 255 if images.dtype == torch.uint8 else images
        return torch.func.functional_call(self._network, params, x)

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> torch.Tensor:
        losses = []
        for params, (x, y, w) in zip(self._params, split_batch(self._devices, images, labels, weights), strict=True):
            loss = nn.functional.cross_entropy(self._forward(params, x), y, reduction="none") @ w
            loss.backward()  # on GPUs this only queues the work: the devices run side by side
            losses.append(loss.detach())
        with torch.no_grad():
            for name in self._params[0]:
                allreduce([params[name].grad for params in self._params])
            for params, momentum in zip(self._params, self._momentum, strict=True):
                self._sgd(params, momentum, lr)
        return sum(loss.to(self.device) for loss in losses)

    def _sgd(self, params: Tensors, momentum: Tensors, lr: float) -> None:
        config = self._config
        for name, param in params.items():
            gradient = param.grad + config.weight_decay * param
            momentum[name].mul_(config.momentum).add_(gradient)
            param -= lr * (gradient + config.momentum * momentum[name] if config.nesterov else momentum[name])
            param.grad = None

    @torch.no_grad()
    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._forward(self._params[0], torch.from_numpy(images).to(self.device)).cpu().numpy()

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        logits = torch.from_numpy(self.logits(images))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="sum")
        return float(loss), logits.argmax(1).numpy()

    def weights(self) -> Weights:
        return {name: param.detach().cpu().numpy().copy() for name, param in self._params[0].items()}

    def load(self, weights: Weights) -> None:
        self._network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        self._params = [get_params(weights, device) for device in self._devices]

    def optimizer_state(self) -> OptimizerState:
        kept: dict[str, Any] = self._momentum[0] if self._config.momentum else {}
        return OptimizerState({f"momentum/{name}": value.cpu().numpy().copy() for name, value in kept.items()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for own in self._momentum if self._config.momentum else ():
            for name, value in own.items():
                value.copy_(torch.from_numpy(state.arrays[f"momentum/{name}"] / np.float32(state.scale)))
