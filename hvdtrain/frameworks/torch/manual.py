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
from hvdtrain.frameworks.batches import network_rows
from hvdtrain.frameworks.devices import count_devices, split_rows
from hvdtrain.frameworks.torch.network import TorchNetwork, scale_pixels
from hvdtrain.interfaces import DEVICES_NORMALIZE, Batch, OptimizerState, Strategy, Unsupported
from hvdtrain.networks.description import STATISTICS, ShapedNetwork, Weights

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
        DEVICES_NORMALIZE,
    )
    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = torch.cuda.device_count() if runtime.device != "cpu" else 0
        self.device_names = [f"cuda:{i}" if gpus else "cpu" for i in range(count_devices(runtime.devices, gpus))]
        super().__init__(config, runtime, single_process(config.strategy), len(self.device_names))


def get_params(weights: Weights, device: str) -> Tensors:
    """Copy the parameters to one device, and running statistics, which need no gradient."""
    return {
        name: torch.tensor(value, device=device, requires_grad=not name.endswith(STATISTICS))
        for name, value in weights.items()
    }


def split_batch(devices: list[str], *batch: np.ndarray) -> list[list[torch.Tensor]]:
    """Split the arrays of a batch into equal parts, one per device, and copy them there: [device][array]."""
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

    def __init__(self, network: ShapedNetwork, weights: Weights, strategy: TorchManual) -> None:
        self.group, self.devices, self.skipped = strategy.group, strategy.devices, 0
        self._device_names, self._config, self._network = strategy.device_names, strategy.config, network
        self.device = self._device_names[0]
        self._names = [name for name, _ in network.parameters()]
        self._model = TorchNetwork(network)
        self.load(weights)
        self._momentum = [{n: torch.zeros_like(params[n]) for n in self._names} for params in self._params]

    def _forward(self, params: Tensors, images: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        height, width = self._network.used_pixels
        pixels = scale_pixels(images[:, :, :height, :width])
        return torch.func.functional_call(self._model, params, (pixels, *masks))

    def train_step(self, batch: Batch) -> torch.Tensor:
        loss = self.compute_gradients(batch)
        with torch.no_grad():
            for name in self._names:
                allreduce([params[name].grad for params in self._params])
            for params, momentum in zip(self._params, self._momentum, strict=True):
                self._sgd(params, momentum, batch.lr)
        return loss

    def compute_gradients(self, batch: Batch) -> torch.Tensor:
        losses = []
        parts = split_batch(self._device_names, *network_rows(self._network, self._config.seed, batch))
        for params, (weights, labels, *inputs) in zip(self._params, parts, strict=True):
            for name in self._names:
                params[name].grad = None
            loss = nn.functional.cross_entropy(self._forward(params, *inputs), labels, reduction="none") @ weights
            loss.backward()  # on GPUs this only queues the work, so the devices compute at the same time
            losses.append(loss.detach())
        return sum(loss.to(self.device) for loss in losses)

    def _sgd(self, params: Tensors, momentum: Tensors, lr: float) -> None:
        config = self._config
        for name in self._names:
            param = params[name]
            gradient = param.grad + config.weight_decay * param
            momentum[name].mul_(config.momentum).add_(gradient)
            param -= lr * (gradient + config.momentum * momentum[name] if config.nesterov else momentum[name])

    @torch.no_grad()
    def logits(self, images: np.ndarray) -> np.ndarray:
        self._model.eval()
        try:
            return self._forward(self._params[0], torch.from_numpy(images).to(self.device)).cpu().numpy()
        finally:
            self._model.train()

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
