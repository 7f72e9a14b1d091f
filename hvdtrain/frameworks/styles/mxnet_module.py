"""MXNet's oldest style: a Symbol bound by `mx.mod.Module` and trained by its `fit`.

Module's own loop runs the steps; hvdtrain's loop feeds it the rows of each step.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

import mxnet as mx

from hvdtrain.collectives.arrays import broadcast_arrays
from hvdtrain.frameworks.batches import Rows, network_rows, pad_rows
from hvdtrain.frameworks.mxnet.learner import LazyLoss, OperatorLearner
from hvdtrain.frameworks.mxnet.network import (
    load_array,
    logits_symbol,
    mask_variable,
    row_losses,
    scale_pixels,
)
from hvdtrain.frameworks.mxnet.objective import load_labels
from hvdtrain.frameworks.mxnet.optimizer import OptimizerStates, make_optimizer
from hvdtrain.frameworks.mxnet.strategies import MXNetHorovod, MXNetKVStore, MXNetStrategy, allreduce_groups
from hvdtrain.interfaces.learner import OptimizerState
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.system.phases import FIT, GRADIENTS, UPDATE, phases
from hvdtrain.tasks.target import NetworkTarget


class ModuleStrategy(MXNetStrategy):
    """What Module's learner calls; by default gradients are not combined."""

    sums_shards = False
    kvstore: str | None = None
    """The argument `kvstore` of Module's `init_optimizer` and `fit`."""

    def wrap_optimizer(
        self, optimizer: mx.optimizer.Optimizer, parameters: dict[str, mx.nd.NDArray]
    ) -> mx.optimizer.Optimizer:
        """The optimizer that `fit` uses; also broadcasts parameters from rank 0."""
        return optimizer

    def reduce(self, gradients: dict[str, mx.nd.NDArray]) -> None:
        """Replace each gradient, by canonical name, by that of the global batch, in place; called before an update."""


class ModuleHorovod(ModuleStrategy, MXNetHorovod):
    """Horovod's allreduce before each update of Module.fit, of groups of gradients."""

    def wrap_optimizer(
        self, optimizer: mx.optimizer.Optimizer, parameters: dict[str, mx.nd.NDArray]
    ) -> mx.optimizer.Optimizer:
        self._hvd.broadcast_parameters(parameters, root_rank=0)
        self._groups = self.groups(parameters)
        optimizer.rescale_grad /= self.group.size  # the average of the sums that `reduce` leaves
        return optimizer

    def reduce(self, gradients: dict[str, mx.nd.NDArray]) -> None:
        allreduce_groups(self._hvd, gradients, self._groups, self._hvd.Sum)


class ModuleKVStore(ModuleStrategy, MXNetKVStore):
    """Module.fit with MXNet's KVStore."""

    def wrap_optimizer(
        self, optimizer: mx.optimizer.Optimizer, parameters: dict[str, mx.nd.NDArray]
    ) -> mx.optimizer.Optimizer:
        arrays = {name: parameter.asnumpy() for name, parameter in parameters.items()}
        for name, value in broadcast_arrays(self.group, arrays).items():
            parameters[name][:] = value
        optimizer.rescale_grad /= self.gradient_divisor
        return optimizer


class ReducingModule(mx.mod.Module):
    """A Module that takes batch statistics, and calls `reduce` with its gradients, before each update."""

    reduce: Callable[[dict[str, mx.nd.NDArray]], None]
    waits: bool
    """Whether `reduce` waits for the gradients of other ranks."""
    take_statistics: Callable[[int], None]
    """Called with the number of rows of a device after each backward pass."""

    def update(self) -> None:
        group = self._exec_group
        self.take_statistics(group.slices[0].stop - group.slices[0].start)
        pairs = zip(group.param_names, group.grad_arrays, strict=True)
        if self.waits:
            phases.begin(GRADIENTS)
        self.reduce({name: on_devices[0] for name, on_devices in pairs})
        phases.begin(UPDATE)
        super().update()
        phases.begin(FIT)


class ModuleFeed(mx.io.DataIter):
    """Feeds `fit` one batch after another."""

    def __init__(
        self, batches: Iterator[Batch], rows: Callable[[Batch], Rows], set_lr: Callable[[float], None],
        module: mx.mod.Module,
    ) -> None:  # fmt: skip
        super().__init__()
        self._batches, self._rows, self._set_lr, self._devices = batches, rows, set_lr, len(module._context)
        self.provide_data, self.provide_label = module.data_shapes, module.label_shapes

    def next(self) -> mx.io.DataBatch:
        batch = next(self._batches)
        weights, labels, images, *masks = pad_rows(self._devices, *self._rows(batch))
        # Module asks for the next batch after it has queued the update before, so the learning rate can change now.
        self._set_lr(batch.lr)
        data = [load_array(array, mx.cpu()) for array in (scale_pixels(images), weights, *masks)]
        return mx.io.DataBatch(data, [load_labels(labels, mx.cpu())])

    def reset(self) -> None:
        """Nothing to do: hvdtrain's loop chooses the rows of the next epoch."""


class NoMetric(mx.metric.EvalMetric):
    """Replaces the metric that `fit` requires, which would wait for the output of each step."""

    def __init__(self) -> None:
        super().__init__("none")

    def update(self, labels: Any, preds: Any) -> None:
        pass


def weighted_loss(network: ShapedNetwork, logits: mx.sym.Symbol) -> mx.sym.Symbol:
    """sum(weights * losses), from whose gradient Module's backward starts."""
    losses = row_losses(mx.sym, network, logits, mx.sym.var("label"))
    return mx.sym.MakeLoss(mx.sym.sum(losses * mx.sym.var("weights")))


class ModuleLearner(OperatorLearner):
    """A Symbol in a Module, trained by its `fit`."""

    between_steps = FIT

    def __init__(self, target: NetworkTarget, weights: Weights, strategy: ModuleStrategy) -> None:
        config, network = strategy.config, target.network
        os.environ["MXNET_UPDATE_ON_KVSTORE"] = "0"  # update in this process, where the state can be read
        super().__init__(network, strategy)
        self._strategy = strategy
        self._module = self._bind(self.devices)  # it is reshaped for each other number of rows
        optimizer = make_optimizer(config)
        parameters = {name: mx.nd.array(weights[name]) for name, _ in network.parameters()}
        wrapped = strategy.wrap_optimizer(optimizer, parameters)
        self.load(weights | {name: value.asnumpy() for name, value in parameters.items()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MXNet expects rescale_grad = 1 / batch; the rows' weights contain that
            self._module.init_optimizer(strategy.kvstore, wrapped)
        self._states = OptimizerStates(config, optimizer, self._contexts, parameters)
        self._create_states()

    def _bind(self, rows: int) -> mx.mod.Module:
        """The Module, bound for batches of that many rows."""
        logger = logging.getLogger("hvdtrain.module")
        logger.setLevel(logging.ERROR)  # fit warns that parameters and optimizer exist already
        loss = weighted_loss(self._network, logits_symbol(self._network, self._multiple))
        shapes = {"data": self._network.input_shape, "weights": ()}
        shapes |= {mask_variable(layer.name): layer.shape for layer in self._network.dropouts}
        module = ReducingModule(loss, list(shapes), ("label",), logger, self._contexts)
        module.reduce, module.take_statistics = self._strategy.reduce, self._take_statistics
        module.waits = isinstance(self._strategy, ModuleHorovod)
        module.bind([(name, (rows, *shape)) for name, shape in shapes.items()], [("label", (rows,))])
        return module

    def _take_statistics(self, rows: int) -> None:
        """Take what `Forward` left in the place of the running statistics, on the first device with so many rows."""
        group = self._module._exec_group
        left = {name: arrays[0] for name, arrays in zip(group.aux_names, group.aux_arrays, strict=True)}
        self._statistics.update_from_batch(left, rows)

    def _device_parameters(self) -> dict[str, list[mx.nd.NDArray]]:
        """Each parameter's array on each device."""
        group = self._module._exec_group
        return dict(zip(group.param_names, group.param_arrays, strict=True))

    def _create_states(self) -> None:
        for i, (name, arrays) in enumerate(self._device_parameters().items()):
            for device, array in enumerate(arrays):
                index = i * self.devices + device  # Module's numbering
                self._states.create(self._module._updater, device, index, name, array)

    def fit(self, batches: Iterator[Batch], steps: int, after: Callable[[SupportsFloat], None]) -> None:
        def next_rows(batch: Batch) -> Rows:
            return network_rows(self._network, self._strategy.config.seed, batch)

        def on_step_end(_: Any) -> None:
            outputs = self._module.get_outputs(merge_multi_context=False)[0]
            after(LazyLoss([output.copy() for output in outputs]))  # a copy, because the next step overwrites them

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parameters and optimizer exist already
            self._module.fit(
                ModuleFeed(batches, next_rows, self._states.set_lr, self._module),
                eval_metric=NoMetric(),
                batch_end_callback=on_step_end,
                kvstore=self._strategy.kvstore,
                num_epoch=1,
            )

    def _first_parameters(self) -> dict[str, mx.nd.NDArray]:
        # In `OperatorLearner`, logits are by operators: a Symbol without gradients keeps its first weights in oneDNN.
        return {name: arrays[0] for name, arrays in self._device_parameters().items()}

    def load(self, weights: Weights) -> None:
        self._network.check(weights)
        arrays = {name: mx.nd.array(value) for name, value in weights.items()}
        # Each of the two arguments takes what it needs.
        self._module.init_params(arg_params=arrays, aux_params=arrays, force_init=True, allow_extra=True)
        self._statistics.load(weights)

    def optimizer_state(self) -> OptimizerState:
        return self._states.read()

    def load_optimizer_state(self, state: OptimizerState) -> None:
        self._states.write(state)
