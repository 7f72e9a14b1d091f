"""MXNet with plain arrays: `attach_grad`, `autograd.record`, operators, and hand-written SGD.

With several devices in one process (`--strategy manual`) this is the method of "Training on Multiple GPUs" in Dive into
Deep Learning: copy the parameters to each device, split the batch, compute gradients on each device, sum them on the
first device, copy the sum back to all devices, and make the same update on each.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from hvdtrain.collectives.groups import single_process
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.batches import count_devices, mask_names, network_rows, split_rows
from hvdtrain.frameworks.mxnet.batch_norm import NormalizationOverRanks
from hvdtrain.frameworks.mxnet.learner import LazyLoss, OperatorLearner
from hvdtrain.frameworks.mxnet.network import Forward, row_losses, scale_pixels
from hvdtrain.frameworks.mxnet.strategies import MXNetHorovod, allreduce_groups
from hvdtrain.frameworks.patterns import without_decay
from hvdtrain.interfaces.learner import OptimizerState
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.networks.description import STATISTICS, Weights
from hvdtrain.system.phases import BACKWARD, FORWARD, GRADIENTS, UPDATE, phases
from hvdtrain.tasks.target import NetworkTarget

Arrays = dict[str, nd.NDArray]


class NDArrayStrategy(Strategy):
    """What the hand-written step calls; by default gradients are not combined."""

    takes_optimizer = sums_shards = False

    def broadcast(self, params: Arrays) -> None:
        """Broadcast parameters from rank 0, in place."""

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        """Replace each gradient by that of the global batch, in place; a list has one array per device."""


class NDArrayManual(NDArrayStrategy):
    """Hand-written allreduce and SGD over several devices of one process (GPUs, or parts of the CPU)."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = mx.context.num_gpus() if runtime.device != "cpu" else 0
        super().__init__(config, runtime, single_process(config.strategy), count_devices(runtime.devices, gpus))

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        for data in gradients.values():
            allreduce(data)


class NDArrayHorovod(NDArrayStrategy, MXNetHorovod):
    """Horovod's allreduce, called for each group of gradients by hand."""

    def broadcast(self, params: Arrays) -> None:
        self._hvd.broadcast_parameters(params, root_rank=0)
        self._groups = self.groups({name: param for name, param in params.items() if not name.endswith(STATISTICS)})

    def reduce(self, gradients: dict[str, list[nd.NDArray]]) -> None:
        on_device = {name: gradient for name, (gradient,) in gradients.items()}
        allreduce_groups(self._hvd, on_device, self._groups, self._hvd.Average)


def get_params(weights: Weights, context: mx.Context) -> Arrays:
    """Copy the parameters to one device, and running statistics, which need no gradient."""
    params = {name: nd.array(value, ctx=context) for name, value in weights.items()}
    for name, param in params.items():
        if not name.endswith(STATISTICS):
            param.attach_grad()
    return params


def split_batch(devices: list[mx.Context], *batch: np.ndarray) -> list[list[nd.NDArray]]:
    """Split the arrays of a batch into equal parts, and copy each to its device as float32: [device][array]."""
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


class NDArrayLearner(OperatorLearner):
    """The network as a function of parameters, with a copy of the parameters on each device."""

    def __init__(self, target: NetworkTarget, weights: Weights, strategy: NDArrayStrategy) -> None:
        network = target.network
        super().__init__(network, strategy)
        self._strategy = strategy
        self._names = [name for name, _ in network.parameters()]
        without = without_decay(self._config.no_decay, self._names)
        self._decays = {name: 0.0 if name in without else self._config.weight_decay for name in self._names}
        self._over_ranks: NormalizationOverRanks | None = None
        if network.batch_norms and strategy.config.batch_norm == "sync":
            self._over_ranks = NormalizationOverRanks(self.group, self._statistics)
        self.load(weights)
        strategy.broadcast(self._params[0])
        self._momentum = [{name: nd.zeros_like(params[name]) for name in self._names} for params in self._params]

    def train_step(self, batch: Batch) -> LazyLoss:
        phases.begin(FORWARD)
        losses = self._backward(batch)
        phases.begin(GRADIENTS)
        self._strategy.reduce({name: [params[name].grad for params in self._params] for name in self._names})
        phases.begin(UPDATE)
        for params, momentum in zip(self._params, self._momentum, strict=True):
            self._sgd(params, momentum, batch.lr)
        return LazyLoss(losses)

    def _backward(self, batch: Batch) -> list[nd.NDArray]:
        """Queue forward and backward on all devices; returns their losses."""
        weights, labels, images, *masks = network_rows(self._network, self._config.seed, batch)
        parts = split_batch(self._contexts, weights, labels, scale_pixels(images), *masks)
        if self._over_ranks:
            self._over_ranks.begin(weights, self._contexts[0])
        with autograd.record():  # the engine computes on all devices at the same time
            losses = [self._loss(params, *rows) for params, rows in zip(self._params, parts, strict=True)]
            if self._over_ranks:
                losses[0] = losses[0] + 0 * self._over_ranks.last.sum()
        phases.begin(BACKWARD)
        autograd.backward(losses)
        if self._over_ranks:
            nd.waitall()  # the layers' collectives must be done before this thread calls others
        else:
            self._statistics.update_from_batch(self._params[0], len(parts[0][0]))
        return losses

    def _loss(
        self, params: Arrays, weights: nd.NDArray, labels: nd.NDArray, images: nd.NDArray, *masks: nd.NDArray
    ) -> nd.NDArray:
        by_layer = dict(zip(mask_names(self._network), masks, strict=True))
        forward = Forward(nd, self._network, params, by_layer, self._multiple, self._over_ranks)
        return (row_losses(nd, self._network, forward(images), labels) * weights).sum()

    def _sgd(self, params: Arrays, momentum: Arrays, lr: float) -> None:
        config = self._config
        for name in self._names:
            param = params[name]
            gradient = param.grad + self._decays[name] * param
            momentum[name][:] = config.momentum * momentum[name] + gradient
            param[:] -= lr * (gradient + config.momentum * momentum[name] if config.nesterov else momentum[name])

    def _first_parameters(self) -> Arrays:
        return self._params[0]

    def load(self, weights: Weights) -> None:
        self._network.check(weights)
        self._params = [get_params(weights, context) for context in self._contexts]
        self._statistics.load(weights)

    def optimizer_state(self) -> OptimizerState:
        momentum = self._momentum[0] if self._config.momentum else {}
        return OptimizerState({f"momentum/{name}": value.asnumpy() for name, value in momentum.items()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for momentum in self._momentum if self._config.momentum else ():
            for name, value in momentum.items():
                value[:] = state.arrays[f"momentum/{name}"] / np.float32(state.scale)
