"""The training loop's learner in MXNet: Gluon."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.contrib import amp

from hvdtrain.frameworks.batches import network_rows, statistics_by_rank
from hvdtrain.frameworks.devices import choose_device, split_rows
from hvdtrain.frameworks.mxnet.arrays import load_array
from hvdtrain.frameworks.mxnet.batch_norm import NormalizationOverRanks, RunningStatistics
from hvdtrain.frameworks.mxnet.network import (
    GluonNetwork,
    WeightedLoss,
    canonical_name,
    channel_multiple,
    cross_entropy,
    scale_pixels,
)
from hvdtrain.frameworks.mxnet.optimizer import OptimizerStates, make_optimizer
from hvdtrain.frameworks.mxnet.strategies import MXNetStrategy
from hvdtrain.interfaces import Batch, Evaluated, OptimizerState, Strategy, classified
from hvdtrain.networks.description import ShapedNetwork, Weights

CLIP_EPSILON = 1e-6
"""Added to the norm that gradients are divided by, as in PyTorch's clip_grad_norm_."""


def choose_contexts(strategy: Strategy) -> list[mx.Context]:
    """The contexts of this process: its GPU, several GPUs, or parts of the CPU. Raises what `choose_device` raises."""
    devices, gpus = strategy.devices, mx.context.num_gpus()
    if choose_device(strategy.runtime.device, gpus > 0, gpus, strategy.group) == "cpu":
        return [mx.cpu(i) for i in range(devices)]
    return [mx.gpu(i) for i in range(devices)] if devices > 1 else [mx.gpu(strategy.group.local_rank)]


def device_name(contexts: list[mx.Context]) -> str:
    """`cpu` or `gpu`."""
    return str(contexts[0]).partition("(")[0]


def load_labels(labels: np.ndarray, context: mx.Context) -> mx.nd.NDArray:
    """Labels on the device as float32, MXNet's convention: its bf16 mode does not accept integers."""
    return load_array(labels.astype(np.float32), context)


def evaluate(logits: mx.nd.NDArray, labels: np.ndarray) -> Evaluated:
    """The evaluation of logits on any device."""
    loss = cross_entropy(mx.nd, logits, load_labels(labels, logits.context)).sum()
    return classified(float(loss.asscalar()), labels, logits.argmax(axis=1).asnumpy().astype(np.int64))


class LazyLoss:
    """The sum of all devices' losses, which the engine may still be computing; MXNet's arrays have no float()."""

    def __init__(self, values: Sequence[mx.nd.NDArray]) -> None:
        self._values = values

    def __float__(self) -> float:
        return sum(float(value.asscalar()) for value in self._values)


class MXNetLearner:
    """A hybridized Gluon network, trained with one strategy."""

    state_by_rank = False

    def __init__(self, network: ShapedNetwork, weights: Weights, strategy: MXNetStrategy) -> None:
        config = strategy.config
        if config.precision == "bf16":
            with contextlib.redirect_stdout(io.StringIO()):
                amp.init(target_dtype="bfloat16")  # for all graphs of this process, so before the first one exists
        self.group = strategy.group
        self._contexts = choose_contexts(strategy)
        self.device, self.devices, self.skipped = device_name(self._contexts), len(self._contexts), 0
        self._config, self._network = config, network
        self._block = GluonNetwork(network, channel_multiple(self.device, config.precision))
        self._block.initialize(ctx=self._contexts)
        arrays = {canonical_name(name): own for name, own in self._block.collect_params().items()}
        self._parameters = {name: arrays[name] for name, _ in network.parameters()}
        self._of_batch = {name: arrays[name] for name, _ in network.statistics()}
        """What `Forward` leaves in the place of the running statistics."""
        self._statistics = RunningStatistics(network)
        self.load(weights)
        self.own_by_rank = statistics_by_rank(network, config)
        self._loss = WeightedLoss(self._block)
        self._over_ranks: NormalizationOverRanks | None = None
        if network.batch_norms and config.batch_norm == "sync":
            self._over_ranks = self._block.normalize = NormalizationOverRanks(self.group, self._statistics)
        else:
            self._loss.hybridize(static_alloc=True, static_shape=True)
            self._block.hybridize()
        optimizer = make_optimizer(config)
        self._trainer = strategy.make_trainer(self._parameters, optimizer)
        self._gradient_divisor = strategy.gradient_divisor
        self._states = OptimizerStates(config, optimizer, self._contexts)
        self._create_states()

    def _create_states(self) -> None:
        for device, (updater, context) in enumerate(zip(self._trainer._updaters, self._contexts, strict=True)):
            for index, parameter in enumerate(self._trainer._params):
                name = canonical_name(parameter.name)
                self._states.create(updater, device, index, name, parameter.data(context))

    def train_step(self, batch: Batch) -> LazyLoss:
        self._states.set_lr(batch.lr)
        losses = self._backward(batch)
        if self._config.clip_norm or self._config.on_nan == "skip":
            self._trainer.allreduce_grads()
            if self._clip_or_skip():
                self._trainer.update(self._gradient_divisor)
        else:
            self._trainer.step(self._gradient_divisor)
        return LazyLoss(losses)

    def compute_gradients(self, batch: Batch) -> LazyLoss:
        losses = self._backward(batch)
        mx.nd.waitall()
        return LazyLoss(losses)

    def _backward(self, batch: Batch) -> list[mx.nd.NDArray]:
        """Queue forward and backward on all devices; returns their losses."""
        parts = split_rows(self.devices, *network_rows(self._network, self._config.seed, batch))
        if self._over_ranks:
            self._over_ranks.begin(batch.weights, self._contexts[0])
        with autograd.record():
            losses = [self._device_loss(part, context) for part, context in zip(parts, self._contexts, strict=True)]
            if self._over_ranks:
                losses[0] = losses[0] + 0 * self._over_ranks.last.sum()
        autograd.backward(losses)
        if self._over_ranks:
            mx.nd.waitall()  # the layers' collectives must be done before this thread calls others
        elif self._of_batch:
            left = {name: parameter.data(self._contexts[0]) for name, parameter in self._of_batch.items()}
            self._statistics.update_from_batch(left, len(parts[0][0]))
        return losses

    def _device_loss(self, rows: tuple[np.ndarray, ...], context: mx.Context) -> mx.nd.NDArray:
        weights, labels, images, *masks = rows
        arrays = [load_array(array, context) for array in (scale_pixels(images), *masks)]
        return self._loss(load_array(weights, context), load_labels(labels, context), *arrays)

    def _clip_or_skip(self) -> bool:
        """Clip the combined gradients; False if they are not finite and the step is to be skipped.

        Combined gradients are identical on all ranks, so either all ranks skip the step or none does. Only the update
        scales them to the average, so the norm is scaled here.
        """
        gradients = [parameter.grad(self._contexts[0]) for parameter in self._parameters.values()]
        scale = self._trainer._scale / self._gradient_divisor
        squares = sum((gradient.astype("float64") ** 2).sum() for gradient in gradients)
        norm = scale * float(np.sqrt(squares.asscalar()))
        if not np.isfinite(norm) and self._config.on_nan == "skip":
            self.skipped += 1
            return False
        if self._config.clip_norm and norm > self._config.clip_norm:
            for parameter in self._parameters.values():
                for gradient in parameter.list_grad():
                    gradient *= self._config.clip_norm / (norm + CLIP_EPSILON)
        return True

    def _logits(self, images: np.ndarray) -> mx.nd.NDArray:
        for name, array in self._statistics.copies(mx.cpu()).items():
            self._of_batch[name].set_data(array)
        return self._block(load_array(scale_pixels(images), self._contexts[0]))

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._logits(images).asnumpy()

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        images, labels = arrays
        return evaluate(self._logits(images), labels)

    def weights(self) -> Weights:
        arrays = {name: parameter.data(self._contexts[0]) for name, parameter in self._parameters.items()}
        return {name: array.asnumpy() for name, array in arrays.items()} | dict(self._statistics.arrays)

    def load(self, weights: Weights) -> None:
        self._network.check(weights)
        for name, parameter in self._parameters.items():
            parameter.set_data(mx.nd.array(weights[name]))
        self._statistics.load(weights)

    def optimizer_state(self) -> OptimizerState:
        return self._states.read()

    def load_optimizer_state(self, state: OptimizerState) -> None:
        self._states.write(state)
