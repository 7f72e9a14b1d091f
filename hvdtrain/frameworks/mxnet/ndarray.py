"""MXNet with plain arrays: `attach_grad`, `autograd.record`, operators, and hand-written SGD.

With several devices in one process (`--strategy manual`) this is the method of "Training on Multiple GPUs" in Dive into
Deep Learning: copy the parameters to each device, split the batch, compute gradients on each device, sum them on the
first device, copy the sum back to all devices, and make the same update on each.
"""

from __future__ import annotations

from typing import ClassVar

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from hvdtrain.collectives.grouping import gradient_groups
from hvdtrain.collectives.single_process import single_process
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.devices import count_devices, split_rows
from hvdtrain.frameworks.mxnet.learner import LazyLoss, choose_contexts, device_name, evaluate
from hvdtrain.frameworks.mxnet.network import channel_multiple, cross_entropy, forward, scale_pixels
from hvdtrain.frameworks.mxnet.strategies import horovod_group
from hvdtrain.interfaces import Group, OptimizerState, Strategy, Unsupported
from hvdtrain.networks.description import Network, Weights

Arrays = dict[str, nd.NDArray]


class NDArrayStrategy(Strategy):
    """What the hand-written step calls; by default gradients are not combined."""

    unsupported: ClassVar[tuple[Unsupported, ...]] = (
        Unsupported("optimizer", ("sgd",), "the hand-written update is SGD"),
        Unsupported("precision", ("fp32",), "the hand-written step is plain fp32"),
        Unsupported("clip_norm", (0.0,), "the hand-written update does not clip"),
        Unsupported("on_nan", ("stop",), "the hand-written update cannot skip a step"),
    )

    def broadcast(self, params: Arrays) -> None:
        """Broadcast parameters from rank 0, in place."""

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        """Replace each gradient by that of the global batch, in place; a list has one array per device."""


class NDArraySingleProcess(NDArrayStrategy):
    """Plain arrays and operators in one process on one device; gradients are not combined."""

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group | None = None) -> None:
        super().__init__(config, runtime, group or single_process(config.strategy))


class NDArrayManual(NDArrayStrategy):
    """Hand-written allreduce and SGD over several devices of one process (GPUs, or parts of the CPU)."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = mx.context.num_gpus() if runtime.device != "cpu" else 0
        super().__init__(config, runtime, single_process(config.strategy), count_devices(runtime.devices, gpus))

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        for data in gradients.values():
            allreduce(data)


class NDArrayHorovod(NDArrayStrategy):
    """Horovod's allreduce, called for each group of gradients by hand."""

    requires = ("horovod.mxnet",)
    unsupported = (
        *NDArrayStrategy.unsupported,
        Unsupported("compression", ("none",), "the hand-written allreduce does not compress"),
        Unsupported("op", ("average",), "the hand-written allreduce averages"),
    )

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.mxnet as hvd

        super().__init__(config, runtime, horovod_group(hvd))
        self._hvd = hvd
        self._groups = gradient_groups(config, self.group.size)

    def broadcast(self, params: Arrays) -> None:
        self._hvd.broadcast_parameters(params, root_rank=0)

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        from hvdtrain.frameworks.mxnet.horovod import allreduce_groups

        allreduce_groups({name: one for name, (one,) in gradients.items()}, self._groups, self._hvd.Average)


def get_params(weights: Weights, context: mx.Context) -> Arrays:
    """Copy the parameters to one device."""
    params = {name: nd.array(value, ctx=context) for name, value in weights.items()}
    for param in params.values():
        param.attach_grad()
    return params


def split_batch(devices: list[mx.Context], *batch: np.ndarray) -> list[list[nd.NDArray]]:
    """Split images, labels and weights into equal parts, and copy each to its device as float32: [device][array]."""
    parts = split_rows(len(devices), *batch)
    return [
        [nd.array(rows, ctx=device, dtype="float32") for rows in part]
        for part, device in zip(parts, devices, strict=True)
    ]


def allreduce(data: list[nd.NDArray]) -> None:
    """Sum on the first device, and copy the sum back to all; `data` has one array per device."""
    for other in data[1:]:
        data[0][:] += other.copyto(data[0].context)
    for other in data[1:]:
        data[0].copyto(other)


class NDArrayLearner:
    """The network as a function of parameters, with a copy of the parameters on each device."""

    state_by_rank = False

    def __init__(self, network: Network, weights: Weights, strategy: NDArrayStrategy) -> None:
        self.group = strategy.group
        self._contexts = choose_contexts(strategy)
        self.device, self.devices, self.skipped = device_name(self._contexts), len(self._contexts), 0
        self._config, self._network, self._strategy = strategy.config, network, strategy
        self._multiple = channel_multiple(self.device, strategy.config.precision)
        self.load(weights)
        strategy.broadcast(self._params[0])
        self._momentum = [{name: nd.zeros_like(p) for name, p in params.items()} for params in self._params]

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> LazyLoss:
        losses = self._backward(images, labels, weights)
        self._strategy.reduce({name: [params[name].grad for params in self._params] for name in self._params[0]})
        for params, momentum in zip(self._params, self._momentum, strict=True):
            self._sgd(params, momentum, lr)
        return LazyLoss(losses)

    def compute_gradients(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> LazyLoss:
        losses = self._backward(images, labels, weights)
        nd.waitall()
        return LazyLoss(losses)

    def _backward(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> list[nd.NDArray]:
        """Queue forward and backward on all devices; returns their losses."""
        parts = split_batch(self._contexts, scale_pixels(images), labels, weights)
        with autograd.record():  # the engine computes on all devices at the same time
            losses = [
                (cross_entropy(nd, forward(nd, self._network, params, x, self._multiple), y) * w).sum()
                for params, (x, y, w) in zip(self._params, parts, strict=True)
            ]
        autograd.backward(losses)
        return losses

    def _sgd(self, params: Arrays, momentum: Arrays, lr: float) -> None:
        config = self._config
        for name, param in params.items():
            gradient = param.grad + config.weight_decay * param
            momentum[name][:] = config.momentum * momentum[name] + gradient
            param[:] -= lr * (gradient + config.momentum * momentum[name] if config.nesterov else momentum[name])

    def _logits(self, images: np.ndarray) -> nd.NDArray:
        pixels = nd.array(scale_pixels(images), ctx=self._contexts[0])
        return forward(nd, self._network, self._params[0], pixels, self._multiple)

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._logits(images).asnumpy()

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        return evaluate(self._logits(images), labels)

    def weights(self) -> Weights:
        return {name: param.asnumpy() for name, param in self._params[0].items()}

    def load(self, weights: Weights) -> None:
        self._network.check(weights)
        self._params = [get_params(weights, context) for context in self._contexts]

    def optimizer_state(self) -> OptimizerState:
        momentum = self._momentum[0] if self._config.momentum else {}
        return OptimizerState({f"momentum/{name}": value.asnumpy() for name, value in momentum.items()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for own in self._momentum if self._config.momentum else ():
            for name, value in own.items():
                value[:] = state.arrays[f"momentum/{name}"] / np.float32(state.scale)
