"""LeNet in MXNet with nothing but arrays: `attach_grad`, `autograd.record`, operators, and SGD by hand.

With several devices in one process (`--strategy manual`) it is what Dive into Deep Learning builds in "Training on
Multiple GPUs": copy the parameters to each device, split the batch, compute gradients on each, add them up on the first
device, copy the sum back to all, and let each device make the same update.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from hvdtrain.collectives import groups
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.mxnet.learner import LazyLoss, contexts
from hvdtrain.frameworks.registry import count_devices
from hvdtrain.interfaces import Group, OptimizerState
from hvdtrain.networks.description import Conv, Dense, Flatten, Network, Pool, Relu, Weights

Arrays = dict[str, nd.NDArray]


class Single:
    """Arrays and operators by hand, on one device."""

    needs: tuple[str, ...] = ()
    lacks: tuple[tuple[str, Any, str], ...] = (
        ("optimizer", "sgd", "the hand-written update is SGD"),
        ("precision", "fp32", "the hand-written step is plain fp32"),
        ("clip_norm", 0.0, "the hand-written update does not clip"),
        ("on_nan", "stop", "the hand-written update skips nothing"),
    )
    many_devices = False
    devices = 1

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group | None = None) -> None:
        self.group: Any = group or groups.single_process(config.strategy)

    def broadcast(self, params: Arrays) -> None:
        """Make the parameters of all ranks rank 0's."""

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        """Make each gradient that of all ranks and devices; a list holds one array a device."""


class Manual(Single):
    """Allreduce and SGD by hand over several devices of one process (mx.gpu(i), or parts of the CPU)."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group = groups.single_process(config.strategy)
        self.devices = count_devices(runtime.devices, mx.context.num_gpus() if runtime.device != "cpu" else 0)

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        for data in gradients.values():
            allreduce(data)


class Horovod(Single):
    """Horovod's allreduce called by hand, on each gradient."""

    needs = ("horovod.mxnet",)
    lacks = (
        *Single.lacks,
        ("compression", "none", "the allreduce by hand sends what it is given"),
        ("op", "average", "the allreduce by hand averages"),
    )

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.mxnet as hvd

        self._hvd = hvd
        self.group = groups.HorovodGroup(hvd, lambda values: nd.array(values, dtype="float64"), nd.NDArray.asnumpy)

    def broadcast(self, params: Arrays) -> None:
        self._hvd.broadcast_parameters(params, root_rank=0)

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        for name, (gradient,) in gradients.items():
            self._hvd.allreduce_(gradient, average=True, name=name)


STRATEGIES = {"single": Single, "manual": Manual, "horovod": Horovod}


def build(
    config: Config, network: Network, weights: Weights, strategy: Single, runtime: RuntimeOptions
) -> NDArrayLearner:
    """The learner of `config`, at its first weights."""
    return NDArrayLearner(config, network, weights, strategy, runtime.device)


def get_params(weights: Weights, context: mx.Context) -> Arrays:
    """Copy the parameters to one device."""
    params = {name: nd.array(value, ctx=context) for name, value in weights.items()}
    for param in params.values():
        param.attach_grad()
    return params


def split_batch(devices: list[mx.Context], *arrays: np.ndarray) -> list[list[nd.NDArray]]:
    """Cut each array into equal parts, and load one on each device: [device][array], float32."""
    rows, count = len(arrays[0]), len(devices)
    if rows % count:
        raise UserError(f"a batch of {rows} rows does not divide among {count} devices; change --batch-size")
    parts = zip(*(np.split(array, count) for array in arrays), strict=True)
    return [
        [nd.array(part, ctx=device, dtype="float32") for part in own]
        for own, device in zip(parts, devices, strict=True)
    ]


def allreduce(data: list[nd.NDArray]) -> None:
    """Add up on the first device, and copy the sum back to all; `data` holds one array a device."""
    for other in data[1:]:
        data[0][:] += other.copyto(data[0].context)
    for other in data[1:]:
        data[0].copyto(other)


def forward(network: Network, params: Arrays, x: nd.NDArray) -> nd.NDArray:
    """Logits of images (n, channels, height, width), layer by layer."""
    for layer in network.layers:
        match layer:
            case Conv(name=name, kernel=k):
                weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
                x = nd.Convolution(x, weight, bias, kernel=(k, k), num_filter=layer.outputs)
            case Dense(name=name):
                weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
                x = nd.FullyConnected(x, weight, bias, num_hidden=layer.outputs)
            case Pool(size=k):
                kind = "avg" if layer.kind == "average" else "max"
                x = nd.Pooling(x, kernel=(k, k), stride=(k, k), pool_type=kind)
            case Relu():
                x = nd.relu(x)
            case Flatten():
                x = nd.flatten(x)
    return x


def cross_entropy(logits: nd.NDArray, labels: nd.NDArray) -> nd.NDArray:
    """Loss of each row, (n,)."""
    return -nd.pick(nd.log_softmax(logits), labels)


class NDArrayLearner:
    """The network as a function of parameters that lie on each device."""

    def __init__(self, config: Config, network: Network, weights: Weights, strategy: Single, device: str) -> None:
        self.group = strategy.group
        self._contexts = contexts(device, strategy.devices, self.group)
        self.device, self.devices = str(self._contexts[0]).partition("(")[0], len(self._contexts)
        self.skipped = 0
        self._config, self._network, self._strategy = config, network, strategy
        self.load(weights)
        strategy.broadcast(self._params[0])
        self._momentum = [{name: nd.zeros_like(p) for name, p in params.items()} for params in self._params]

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> LazyLoss:
        parts = split_batch(self._contexts, pixels(images), labels, weights)
        with autograd.record():  # the engine runs the devices side by side
            losses = [
                (cross_entropy(forward(self._network, params, x), y) * w).sum()
                for params, (x, y, w) in zip(self._params, parts, strict=True)
            ]
        autograd.backward(losses)
        self._strategy.reduce({name: [params[name].grad for params in self._params] for name in self._params[0]})
        for params, momentum in zip(self._params, self._momentum, strict=True):
            self._sgd(params, momentum, lr)
        return LazyLoss(losses)

    def _sgd(self, params: Arrays, momentum: Arrays, lr: float) -> None:
        config = self._config
        for name, param in params.items():
            gradient = param.grad + config.weight_decay * param
            momentum[name][:] = config.momentum * momentum[name] + gradient
            param[:] -= lr * (gradient + config.momentum * momentum[name] if config.nesterov else momentum[name])

    def _logits(self, images: np.ndarray) -> nd.NDArray:
        return forward(self._network, self._params[0], nd.array(pixels(images), ctx=self._contexts[0]))

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._logits(images).asnumpy()

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        logits = self._logits(images)
        loss = cross_entropy(logits, nd.array(labels, ctx=self._contexts[0])).sum()
        return float(loss.asscalar()), logits.argmax(axis=1).asnumpy().astype(np.int64)

    def weights(self) -> Weights:
        return {name: param.asnumpy() for name, param in self._params[0].items()}

    def load(self, weights: Weights) -> None:
        if {name: value.shape for name, value in weights.items()} != dict(self._network.parameters()):
            raise ValueError("the parameters are not those of this network")
        self._params = [get_params(weights, context) for context in self._contexts]

    def optimizer_state(self) -> OptimizerState:
        kept = self._momentum[0] if self._config.momentum else {}
        return OptimizerState({f"momentum/{name}": value.asnumpy() for name, value in kept.items()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for own in self._momentum if self._config.momentum else ():
            for name, value in own.items():
                value[:] = state.arrays[f"momentum/{name}"] / np.float32(state.scale)


def pixels(images: np.ndarray) -> np.ndarray:
    """Images as float32, uint8 scaled to [0, 1]."""
    return np.divide(images, 255, dtype=np.float32) if images.dtype == np.uint8 else images
