"""Keras' `model.fit`: its own loop runs the steps, and hvdtrain's loop feeds it the rows of each.

A strategy changes what Keras' users change: where the model is built (`strategy.scope()`), or the optimizer (Horovod's
`DistributedOptimizer`) and the callbacks.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsFloat

import numpy as np
import tensorflow as tf

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.batches import Rows, split_rows
from hvdtrain.frameworks.patterns import without_decay
from hvdtrain.frameworks.tensorflow.keras_versions import KerasOptimizer
from hvdtrain.frameworks.tensorflow.learner import TensorFlowLearner
from hvdtrain.frameworks.tensorflow.network import scale_pixels
from hvdtrain.frameworks.tensorflow.strategies import (
    TensorFlowDistributed,
    TensorFlowHorovod,
    TensorFlowMirrored,
    TensorFlowMultiWorker,
    TensorFlowStrategy,
)
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import FIT
from hvdtrain.tasks.target import NetworkTarget


class KerasStrategy(TensorFlowStrategy):
    """What Keras' learner calls; by default gradients are not combined."""

    sums_shards = False
    summed_ranks = 1
    """Number of ranks whose gradients are summed instead of averaged."""

    def wrap_optimizer(self, optimizer: KerasSGD, variables: list[tf.Variable]) -> KerasSGD:
        """The optimizer of these variables that the model is compiled with."""
        return optimizer

    def distribute(self, rows: tf.data.Dataset) -> Any:
        """The data set that fit reads."""
        return rows

    def callbacks(self, feed: KerasFeed, steps: int) -> list[tf.keras.callbacks.Callback]:
        """Callbacks besides `feed`."""
        return []


class KerasHorovod(KerasStrategy, TensorFlowHorovod):
    """Horovod for Keras: DistributedOptimizer in model.compile, and Horovod's callbacks in model.fit."""

    requires = ("horovod.tensorflow.keras",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        super().__init__(config, runtime)
        import horovod.tensorflow.keras as keras

        self._keras = keras
        self._broadcast = keras.callbacks.BroadcastGlobalVariablesCallback(0)

    def wrap_optimizer(self, optimizer: KerasSGD, variables: list[tf.Variable]) -> KerasSGD:
        return self._keras.DistributedOptimizer(
            optimizer, compression=self._compression, groups=self._groups(variables)
        )

    def callbacks(self, feed: KerasFeed, steps: int) -> list[tf.keras.callbacks.Callback]:
        callbacks = self._keras.callbacks
        # Horovod's LearningRateWarmupCallback adds its own warm-up to this class; here the rate is hvdtrain's.
        schedule = callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: feed.lr, staircase=False, momentum_correction=False, steps_per_epoch=steps
        )
        return [self._broadcast, callbacks.MetricAverageCallback(), schedule]


class KerasDistributed(KerasStrategy, TensorFlowDistributed):
    """model.fit in the scope of a `tf.distribute.Strategy`."""

    def distribute(self, rows: tf.data.Dataset) -> Any:
        return self.distribution.distribute_datasets_from_function(lambda context: rows)


class KerasMirrored(KerasDistributed, TensorFlowMirrored):
    """MirroredStrategy and model.fit: a replica on each device of one process."""


class KerasMultiWorker(KerasDistributed, TensorFlowMultiWorker):
    """MultiWorkerMirroredStrategy and model.fit: a replica on each rank."""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        super().__init__(config, runtime)
        self.summed_ranks = self.group.size


class KerasSGD(KerasOptimizer):
    """SGD that keeps the plain sum of gradients as momentum, so that a schedule has the same effect as in the loop.

    Keras' own SGD keeps momentum times the learning rate, and does not add weight decay to the gradient. no_l2: numbers
    of the variables without weight decay.
    """

    def __init__(
        self,
        learning_rate: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        l2: float = 0.0,
        no_l2: Sequence[int] = (),
        name: str = "Sgd",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        self._options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "l2": l2, "no_l2": [*no_l2]}
        self.slots: dict[str, list[tf.Variable]] = {}

    @property
    def updates(self) -> Any:
        return self.iterations

    def build(self, var_list: list[tf.Variable]) -> None:
        if getattr(self, "_built", False):  # Keras builds again, with the variables in an order of its own
            return
        super().build(var_list)
        if self._options["momentum"]:
            self.slots["momentum"] = [self.add_variable_from_reference(v, "momentum") for v in var_list]
        self._built = True

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any = None) -> None:
        """learning_rate: in Keras 3 that of this step."""
        momentum, nesterov, l2 = (self._options[name] for name in ("momentum", "nesterov", "l2"))
        number = self.number_of(variable)
        if l2 and number not in self._options["no_l2"]:
            gradient += l2 * variable
        if momentum:
            total = self.slots["momentum"][number]
            total.assign(momentum * total + gradient)
            gradient = gradient + momentum * total if nesterov else total
        variable.assign_sub(tf.convert_to_tensor(self.learning_rate) * gradient)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._options}


class KerasFeed(tf.keras.callbacks.Callback):
    """Gives fit the rows of each step when the step begins, and calls `after` when it is done."""

    _supports_tf_logs = True  # in Keras 2, losses stay tensors, so a step does not wait for the one before

    def __init__(
        self,
        batches: Iterator[Batch],
        to_rows: Callable[[Batch], Rows],
        after: Callable[[SupportsFloat], None],
        parts: int,
        factor: int,
    ) -> None:
        super().__init__()
        self._batches, self._to_rows, self._after, self._parts, self._factor = batches, to_rows, after, parts, factor
        self._rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lr = 0.0

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Inputs, labels and weights of each device in each step.

        Fit may ask for them before the step begins, and then waits.
        """
        while (rows := self._rows.get()) is not None:
            weights, labels, *inputs = rows
            yield tuple(inputs), labels, weights

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        try:
            rows = next(self._batches)
        except BaseException:  # of a row that cannot be read
            self.on_train_end()
            raise
        self.lr = rows.lr
        weights, labels, images, *others = self._to_rows(rows)
        with tf.device("CPU"):  # the data set distributes them to the devices
            pixels = scale_pixels(tf.constant(images)).numpy()
        for part in split_rows(self._parts, weights / np.float32(self._factor), labels, pixels, *others):
            self._rows.put(part)
        self.model.optimizer.learning_rate.assign(self.lr)
        self.model.reset_metrics()  # so that the loss is that of this step only

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        try:
            self._after(logs["loss"] / self._factor)  # the sum over the ranks of the distribution
        except BaseException:
            self.on_train_end()
            raise

    def on_train_end(self, logs: Any = None) -> None:
        """End the thread that waits for more rows; fit does not return before it ends."""
        self._rows.put(None)


class KerasLearner(TensorFlowLearner):
    """A compiled Keras model, trained by its `fit`."""

    _strategy: KerasStrategy

    between_steps = FIT

    def __init__(self, target: NetworkTarget, weights: Weights, strategy: KerasStrategy) -> None:
        self._network = target.network
        tf.get_logger().setLevel("ERROR")  # Keras warns if callbacks take longer than a step, as for a small network
        super().__init__(target, weights, strategy)

    def _make_optimizer(self, config: Config) -> Any:
        without = without_decay(config.no_decay, self._parameters)
        no_l2 = [number for number, name in enumerate(self._parameters) if name in without]
        sgd = KerasSGD(config.lr, config.momentum, config.nesterov, config.weight_decay, no_l2)
        optimizer = self._strategy.wrap_optimizer(sgd, self._variables)
        optimizer.build(self._variables)
        # The sum over rows, not their mean: the rows' weights contain the division by the global batch.
        loss: Any = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        if self._network.is_regression:
            loss = tf.keras.losses.MeanSquaredError(reduction="sum")
        self._model.compile(optimizer, loss, jit_compile=False)
        return optimizer

    def fit(self, batches: Iterator[Batch], steps: int, after: Callable[[SupportsFloat], None]) -> None:
        strategy = self._strategy
        feed = KerasFeed(
            batches, lambda batch: self._objective.rows(batch, 1), after, self.devices, strategy.summed_ranks
        )
        channels, height, width = self._network.input_shape
        shapes = [(height, width, channels), *(layer.shape for layer in self._network.dropouts)]
        shapes += [()] if self._network.batch_norms and self._config.batch_norm == "sync" else []
        inputs = tuple(tf.TensorSpec((None, *shape), tf.float32) for shape in shapes)
        label = tf.float32 if self._network.is_regression else tf.int64
        signature = inputs, tf.TensorSpec((None,), label), tf.TensorSpec((None,), tf.float32)
        rows = tf.data.Dataset.from_generator(feed.rows, output_signature=signature)
        callbacks = [feed, *strategy.callbacks(feed, steps)]
        self._model.fit(strategy.distribute(rows), steps_per_epoch=steps, verbose=0, callbacks=callbacks)
