"""What Gluon's learner trains: a block, and the loss and metrics of each row."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import network_rows, split_rows, statistics_by_rank
from hvdtrain.frameworks.mxnet.batch_norm import (
    BlockStatistics,
    NormalizationOverRanks,
    RunningStatistics,
)
from hvdtrain.frameworks.mxnet.network import (
    GluonNetwork,
    WeightedLoss,
    channel_multiple,
    cross_entropy,
    fill_gradients,
    forget_gradients,
    forget_graph,
    freeze_parameters,
    is_one_graph,
    is_sparse,
    load_array,
    load_parameters,
    named_parameters,
    parameter_weights,
    row_losses,
    run_in_training,
    scale_pixels,
)
from hvdtrain.frameworks.mxnet.strategies import MXNetStrategy
from hvdtrain.frameworks.row_checks import not_trained
from hvdtrain.frameworks.user_code import TaskOutputs, failing_model, no_gradient, no_model, nothing_to_train
from hvdtrain.interfaces.learner import Evaluated
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.system.phases import BACKWARD, phases
from hvdtrain.tasks.target import NetworkTarget, step_seed
from hvdtrain.tasks.user import UserTask

Arrays = list[mx.nd.NDArray]


def backward(losses: Arrays) -> None:
    """Queue the backward pass of recorded losses."""
    phases.begin(BACKWARD)
    autograd.backward(losses)


def load_labels(labels: np.ndarray, context: mx.Context) -> mx.nd.NDArray:
    """Labels on the device as float32, MXNet's convention: its bf16 mode does not accept integers."""
    return load_array(labels.astype(np.float32), context)


def evaluate(network: ShapedNetwork, logits: mx.nd.NDArray, labels: np.ndarray) -> Evaluated:
    """The evaluation of a network's outputs on any device."""
    losses = row_losses(mx.nd, network, logits, load_labels(labels, logits.context))
    if network.is_regression:
        return Evaluated(float(losses.sum().asscalar()), {}, logits.astype("float32").asnumpy()[:, 0], losses.asnumpy)
    predicted = logits.argmax(axis=1).asnumpy().astype(np.int64)
    right = float(np.count_nonzero(labels == predicted))
    return Evaluated(float(losses.sum().asscalar()), {"accuracy": right}, predicted, losses.asnumpy)


class MXNetNetworkObjective:
    """Classify images, or predict a number for each, with a network as data, on all devices of a process.

    weights: the initial ones. `parameters` are trained, and --freeze names those that are `frozen`, by canonical name.
    """

    def __init__(
        self, target: NetworkTarget, weights: Weights, strategy: MXNetStrategy, contexts: list[mx.Context]
    ) -> None:
        config, network = strategy.config, target.network
        self._network, self._seed, self._contexts = network, config.seed, contexts
        multiple = channel_multiple(contexts[0].device_type, config.precision)
        self.block = GluonNetwork(network, multiple)
        self.block.initialize(ctx=contexts)
        arrays = self.block.collect_params()
        self._all = {name: arrays[name] for name, _ in network.parameters()}
        self._of_batch = {name: arrays[name] for name, _ in network.statistics()}
        """What `Forward` leaves in the place of the running statistics."""
        self.parameters, self.frozen = freeze_parameters(config.freeze, self._all, self._of_batch)
        self.statistics: RunningStatistics = RunningStatistics(network)
        self.load(weights)
        self.local_weights = statistics_by_rank(network, config)
        self._loss = WeightedLoss(self.block)
        self._over_ranks: NormalizationOverRanks | None = None
        if network.batch_norms and config.batch_norm == "sync":
            if len(contexts) > 1:
                problem = "--batch-norm sync: each device of a process normalizes its own rows"
                raise UserError(problem, "leave it at local, or use --devices 1")
            self._over_ranks = self.block.normalize = NormalizationOverRanks(strategy.group, self.statistics)
        else:
            self._loss.hybridize(static_alloc=True, static_shape=True)
            self.block.hybridize()

    def seed_step(self, step: int, part: int) -> None:
        """Seed the generators for a part of a step: nothing to do, as masks of dropout are drawn in NumPy."""

    def forward(self, batch: Batch) -> Arrays:
        """Queue the forward pass on all devices; returns their losses, recorded."""
        parts = split_rows(len(self._contexts), *network_rows(self._network, self._seed, batch))
        if self._over_ranks:
            self._over_ranks.begin(batch.weights, self._contexts[0])
        with autograd.record():
            losses = [self._device_loss(part, context) for part, context in zip(parts, self._contexts, strict=True)]
            if self._over_ranks:
                losses[0] = losses[0] + 0 * self._over_ranks.last.sum()
        return losses

    def backward(self, losses: Arrays, batch: Batch) -> None:
        """Queue the backward pass of what `forward` returned for a batch."""
        backward(losses)
        if self._over_ranks:
            mx.nd.waitall()  # the layers' collectives must be done before this thread calls others
        elif self._of_batch:
            left = {name: parameter.data(self._contexts[0]) for name, parameter in self._of_batch.items()}
            self.statistics.update_from_batch(left, -(-len(batch.weights) // len(self._contexts)))

    def _device_loss(self, rows: tuple[np.ndarray, ...], context: mx.Context) -> mx.nd.NDArray:
        weights, labels, images, *masks = rows
        arrays = [load_array(array, context) for array in (scale_pixels(images), *masks)]
        return self._loss(load_array(weights, context), load_labels(labels, context), *arrays)

    def trained_block(self) -> gluon.Block:
        """The block with all that it has learned, for a use outside of hvdtrain."""
        for name, array in self.statistics.copies(mx.cpu()).items():
            self._of_batch[name].set_data(array)
        return self.block

    def logits(self, images: np.ndarray) -> mx.nd.NDArray:
        return self.trained_block()(load_array(scale_pixels(images), self._contexts[0]))

    def evaluate(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        images, labels = arrays
        return evaluate(self._network, self.logits(images), labels)

    def weights(self) -> Weights:
        arrays = {name: parameter.data(self._contexts[0]) for name, parameter in self._all.items()}
        return {name: array.asnumpy() for name, array in arrays.items()} | dict(self.statistics.arrays)

    def load(self, weights: Weights) -> None:
        self._network.check(weights)
        for name, parameter in self._all.items():
            parameter.set_data(mx.nd.array(weights[name]))
        self.statistics.load(weights)


class MXNetTaskObjective(TaskOutputs):
    """A task of the user's own. Its block is made with seeded generators, so all ranks begin with the same weights.

    Raises UserError for methods that do not return what they must, found out on the first rows.
    """

    tensor, int64 = mx.nd.NDArray, np.int64

    def __init__(
        self, task: UserTask, weights: Weights | None, strategy: MXNetStrategy, contexts: list[mx.Context]
    ) -> None:
        self._task, self._seed, self._contexts = task, strategy.config.seed, contexts
        seed_generators(self._seed)
        self.block = self._make_block()
        known = {name: array for name, array in named_parameters(self.block).items() if not array._deferred_init}
        before = parameter_weights(known, contexts[0])
        inputs, targets = task.try_out(self._build)
        load_parameters(known, before)
        self._all = named_parameters(self.block)
        self.parameters = {name: array for name, array in self._all.items() if array.grad_req != "null"}
        untrained = {name: array for name, array in self._all.items() if array.grad_req == "null"}
        self.local_weights = frozenset(untrained)
        self.statistics = BlockStatistics(untrained, contexts[0])
        if not self.parameters:
            raise nothing_to_train(task)
        self.parameters, self.frozen = freeze_parameters(strategy.config.freeze, self.parameters, untrained)
        self._check_parameters()
        self._try_out(inputs, targets)
        if weights:
            self.load(weights)

    def _make_block(self) -> gluon.Block:
        block = self._task.call("model")
        if not isinstance(block, gluon.Block):
            raise no_model(self._task, block, "mxnet")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parameters that the task initialized
            block.initialize(ctx=self._contexts)
        block.collect_params().reset_ctx(self._contexts)
        return block

    def _build(self, arrays: tuple[np.ndarray, ...]) -> tuple[Arrays, Arrays]:
        """Run the block, from which parameters get their shapes, and hybridize it if it can be.

        Returns its inputs and the targets.
        """
        inputs, targets = self._split([load_array(np.asarray(array), self._contexts[0]) for array in arrays])
        try:
            self._losses_of(self.block(*inputs), targets)
            mx.nd.waitall()
            run_in_training(self.block, inputs)
        except UserError:
            raise
        except Exception as error:
            raise failing_model(self._task, inputs, error) from error
        if isinstance(self.block, gluon.HybridBlock):
            try:
                self.block.hybridize(is_one_graph(self.block, inputs))
                self.block(*inputs)
                mx.nd.waitall()
            except Exception:  # its hybrid_forward works on arrays only
                self.block.hybridize(False)
        return inputs, targets

    def _check_parameters(self) -> None:
        for name, parameter in self._all.items():
            if parameter._deferred_init:
                problem = f"returned a model that does not use {name}, whose shape is not known"
                raise self._task.error("model", problem, "leave its layer out, or give it in_units or in_channels")
        error = functools.partial(self._task.error, "model")
        for name, parameter in self.parameters.items():
            check_gradients(error, f"returned a model whose parameter {name}", parameter)
            if np.dtype(parameter.dtype) != np.float32:
                problem = f"returned a model whose parameter {name} is {np.dtype(parameter.dtype)}"
                raise self._task.error("model", problem, "use float32")

    def _try_out(self, inputs: Arrays, targets: Arrays) -> None:
        """Compute losses, metrics and gradients once."""
        before, first = self.weights(), self._contexts[0]
        own = [array for parameter in self._all.values() for array in parameter.list_data()]
        with without_others(f"--model {self._task.name}", own + inputs + targets):
            with autograd.record():
                outputs = self.block(*inputs)
                losses = self._losses_of(outputs, targets)
            self._metrics_of(outputs, targets)
            forget_gradients(self.parameters)
            try:
                losses.backward()
                mx.nd.waitall()
            except mx.MXNetError as error:
                raise no_gradient(self._task) from error
        self._examine(outputs, targets, losses)  # calls losses() again, which may change what backward() needs
        if not any(parameter.data(first)._fresh_grad for parameter in self.parameters.values()):
            raise no_gradient(self._task)
        self.load(before)
        if not isinstance(self.block, gluon.HybridBlock):
            self.block.apply(forget_graph)

    def seed_step(self, step: int, part: int) -> None:
        seed_generators(step_seed(self._seed, step, part))

    def forward(self, batch: Batch) -> Arrays:
        parts = split_rows(len(self._contexts), batch.weights, *batch.arrays)
        with autograd.record():
            return [self._device_loss(part, context) for part, context in zip(parts, self._contexts, strict=True)]

    def _device_loss(self, rows: tuple[np.ndarray, ...], context: mx.Context) -> mx.nd.NDArray:
        weights, *arrays = (load_array(np.asarray(array), context) for array in rows)
        inputs, targets = self._split(arrays)
        return (self._losses_of(self.block(*inputs), targets) * weights).sum()

    def backward(self, losses: Arrays, batch: Batch) -> None:
        forget_gradients(self.parameters)
        backward(losses)
        fill_gradients(self.parameters)

    def trained_block(self) -> gluon.Block:
        return self.block

    def evaluate(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        padded, rows = self.eval_rows(arrays), len(arrays[0])
        inputs, targets = self._split([load_array(np.asarray(array), self._contexts[0]) for array in padded])
        outputs = self.block(*inputs)
        losses, metrics = self._losses_of(outputs, targets), self._metrics_of(outputs, targets)
        sums = {name: total(value[:rows]) for name, value in metrics.items()}
        predicted = None if self._task.has("losses") else outputs[:rows].argmax(axis=1).asnumpy().astype(np.int64)
        return Evaluated(total(losses[:rows]), sums, predicted, losses[:rows].asnumpy)

    def _by_row(self, method: str, values: Any, outputs: Any, targets: Any) -> mx.nd.NDArray:
        return super()._by_row(method, values, outputs, targets).astype(np.float32, copy=False)

    @staticmethod
    def _cross_entropy(logits: mx.nd.NDArray, labels: mx.nd.NDArray) -> mx.nd.NDArray:
        return cross_entropy(mx.nd, logits, labels.astype(np.float32))

    @staticmethod
    def _is_right(logits: mx.nd.NDArray, labels: mx.nd.NDArray) -> mx.nd.NDArray:
        return logits.argmax(axis=1) == labels.astype(np.float32)

    def weights(self) -> Weights:
        return parameter_weights(self._all, self._contexts[0])

    def load(self, weights: Weights) -> None:
        load_parameters(self._all, weights)


@contextlib.contextmanager
def without_others(where: str, known: Iterable[mx.nd.NDArray]) -> Iterator[None]:
    """Raise UserError if a backward pass inside gives a gradient to an array that was there, and is not known."""
    ids, existing = set(map(id, known)), [thing for thing in gc.get_objects() if issubclass(type(thing), mx.nd.NDArray)]
    others = [array for array in existing if array.grad is not None and id(array) not in ids]
    for array in others:
        array._fresh_grad = False
    yield
    for array in others:
        if array._fresh_grad and array.grad.asnumpy().any():
            raise not_trained(where, array, "grad_req='null'")


def check_gradients(error: Callable[[str, str], UserError], what: str, parameter: gluon.Parameter) -> None:
    """Raise an error unless a parameter has dense gradients, of one step each.

    error: makes it of problem and remedy. what: names the parameter.
    """
    if parameter.grad_req == "add":
        raise error(f"{what} adds up the gradients of all steps", "give it grad_req='write'")
    if is_sparse(parameter):
        raise error(f"{what} is sparse", "leave out sparse_grad")


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, NumPy and MXNet."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    mx.random.seed(seed % (1 << 31))


def total(values: mx.nd.NDArray) -> float:
    """The sum in float64."""
    return float(values.asnumpy().astype(np.float64).sum())


MXNetObjective = MXNetNetworkObjective | MXNetTaskObjective
"""A block on all devices of a process, and what its outputs are worth."""
OBJECTIVES: dict[str, Callable[[Any, Any, MXNetStrategy, list[mx.Context]], MXNetObjective]] = {
    "network": MXNetNetworkObjective,
    "task": MXNetTaskObjective,
}
"""By kind of target."""
