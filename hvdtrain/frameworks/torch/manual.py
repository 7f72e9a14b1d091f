"""Data parallelism by hand in PyTorch: several devices in one process, with plain tensors.

This is the method of "Training on Multiple GPUs" in Dive into Deep Learning: copy the parameters to each device, split
the batch, compute gradients on each device, sum them on the first device, copy the sum back to all devices, and make
the same update on each.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from hvdtrain.collectives.single_process import single_process
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.devices import count_devices, split_rows
from hvdtrain.frameworks.torch.network import build_network, scale_pixels
from hvdtrain.interfaces import OptimizerState, Strategy, Unsupported
from hvdtrain.networks.description import Network, Weights

Tensors = dict[str, torch.Tensor]


class TorchManual(Strategy):
    """Hand-written allreduce and SGD over several devices of one process (GPUs, or parts of the CPU)."""

    unsupported = (
        Unsupported("optimizer", ("sgd",), "the hand-written update is SGD"),
        Unsupported("precision", ("fp32",), "the hand-written step is plain fp32"),
        Unsupported("compile", (False,), "the hand-written step has a network for each device"),
        Unsupported("accumulate", (1,), "the hand-written step processes a batch in one pass"),
        Unsupported("clip_norm", (0.0,), "the hand-written update does not clip"),
        Unsupported("on_nan", ("stop",), "the hand-written update cannot skip a step"),
    )
    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = torch.cuda.device_count() if runtime.device != "cpu" else 0
        self.device_names = [f"cuda:{i}" if gpus else "cpu" for i in range(count_devices(runtime.devices, gpus))]
        super().__init__(config, runtime, single_process(config.strategy), len(self.device_names))


def get_params(weights: Weights, device: str) -> Tensors:
    """Copy the parameters to one device."""
    return {name: torch.tensor(value, device=device, requires_grad=True) for name, value in weights.items()}


def split_batch(devices: list[str], *batch: np.ndarray) -> list[list[torch.Tensor]]:
    """Split images, labels and weights into equal parts, one per device, and copy them there: [device][array]."""
    parts = split_rows(len(devices), *batch)
    return [[torch.from_numpy(rows).to(device) for rows in part] for part, device in zip(parts, devices, strict=True)]


def allreduce(data: list[torch.Tensor]) -> None:
    """Sum on the first device, and copy the sum back to all; `data` has one tensor per device."""
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for other in data[1:]:
        other.copy_(data[0])


class TorchManualLearner:
    """The network as a function of parameters, with a copy of the parameters on each device."""

    state_by_rank = False

    def __init__(self, network: Network, weights: Weights, strategy: TorchManual) -> None:
        self.group, self.devices, self.skipped = strategy.group, strategy.devices, 0
        self._device_names, self._config, self._network = strategy.device_names, strategy.config, network
        self.device = self._device_names[0]
        self._model = build_network(network)
        self.load(weights)
        self._momentum = [{n: torch.zeros_like(p) for n, p in params.items()} for params in self._params]

    def _forward(self, params: Tensors, images: torch.Tensor) -> torch.Tensor:
        height, width = self._network.used_pixels
        return torch.func.functional_call(self._model, params, scale_pixels(images[:, :, :height, :width]))

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> torch.Tensor:
        loss = self.compute_gradients(images, labels, weights)
        with torch.no_grad():
            for name in self._params[0]:
                allreduce([params[name].grad for params in self._params])
            for params, momentum in zip(self._params, self._momentum, strict=True):
                self._sgd(params, momentum, lr)
        return loss

    def compute_gradients(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> torch.Tensor:
        losses = []
        parts = split_batch(self._device_names, images, labels, weights)
        for params, (x, y, w) in zip(self._params, parts, strict=True):
            for param in params.values():
                param.grad = None
            loss = nn.functional.cross_entropy(self._forward(params, x), y, reduction="none") @ w
            loss.backward()  # on GPUs this only queues the work, so the devices compute at the same time
            losses.append(loss.detach())
        return sum(loss.to(self.device) for loss in losses)

    def _sgd(self, params: Tensors, momentum: Tensors, lr: float) -> None:
        config = self._config
        for name, param in params.items():
            gradient = param.grad + config.weight_decay * param
            momentum[name].mul_(config.momentum).add_(gradient)
            param -= lr * (gradient + config.momentum * momentum[name] if config.nesterov else momentum[name])

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
        self._network.check(weights)
        self._params = [get_params(weights, device) for device in self._device_names]

    def optimizer_state(self) -> OptimizerState:
        momentum: Tensors = self._momentum[0] if self._config.momentum else {}
        return OptimizerState({f"momentum/{name}": value.cpu().numpy().copy() for name, value in momentum.items()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for own in self._momentum if self._config.momentum else ():
            for name, value in own.items():
                value.copy_(torch.from_numpy(state.arrays[f"momentum/{name}"] / np.float32(state.scale)))
