"""LeNet in Keras, trained by `model.fit`: Keras' own loop takes the steps, ours hands it the rows of each.

What a strategy changes is what Keras' users change: where the model is built (`strategy.scope()`), or the optimizer
(Horovod's `DistributedOptimizer`) and the callbacks.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

import numpy as np
import tensorflow as tf

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.tensorflow import learner
from hvdtrain.frameworks.tensorflow.learner import TensorFlowLearner, channel_last, prepare
from hvdtrain.interfaces import Batch
from hvdtrain.networks.description import Network, Weights

LACKS = (
    ("optimizer", "sgd", "Keras' Adam adds another epsilon than the other frameworks"),
    ("precision", "fp32", "the loss scale is the loop's, choose --api loop"),
    ("accumulate", 1, "Keras' fit takes a batch at once, choose --api loop"),
    ("clip_norm", 0.0, "Keras clips before gradients are joined, choose --api loop"),
    ("on_nan", "stop", "Keras' fit skips nothing, choose --api loop"),
)


class Single(learner.Single):
    """model.fit in one process: gradients meet nobody."""

    lacks = LACKS
    joined_by_sum = 1
    """Ranks whose gradients are added up and not averaged."""

    def wrap(self, optimizer: Sgd) -> Sgd:
        """The optimizer that the model is compiled with."""
        return optimizer

    def dataset(self, rows: tf.data.Dataset) -> Any:
        """What fit takes its batches from."""
        return rows

    def callbacks(self, feed: Feed, steps: int) -> list[tf.keras.callbacks.Callback]:
        """Callbacks beside the one that feeds."""
        return []


class Horovod(learner.Horovod, Single):
    """Horovod's Keras path: DistributedOptimizer in compile, and its callbacks in fit."""

    needs = ("horovod.tensorflow.keras",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        super().__init__(config, runtime)
        import horovod.tensorflow.keras as keras

        self._keras = keras
        self._broadcast = keras.callbacks.BroadcastGlobalVariablesCallback(0)

    def wrap(self, optimizer: Sgd) -> Sgd:
        return self._keras.DistributedOptimizer(optimizer, compression=self._compression, op=self._op)

    def callbacks(self, feed: Feed, steps: int) -> list[tf.keras.callbacks.Callback]:
        callbacks = self._keras.callbacks
        # LearningRateWarmupCallback is this one with Horovod's own warm-up, from lr / size; the schedule is ours.
        schedule = callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: feed.lr, staircase=False, momentum_correction=False, steps_per_epoch=steps
        )
        return [self._broadcast, callbacks.MetricAverageCallback(), schedule]


class Mirrored(learner.Mirrored, Single):
    """MirroredStrategy and model.fit: a copy on each device of this process."""

    def dataset(self, rows: tf.data.Dataset) -> Any:
        return self.tf.distribute_datasets_from_function(lambda context: rows)


class MultiWorker(learner.MultiWorker, Mirrored):
    """MultiWorkerMirroredStrategy and model.fit: a copy on each rank."""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        super().__init__(config, runtime)
        self.joined_by_sum = self.group.size


STRATEGIES = {"single": Single, "horovod": Horovod, "mirrored": Mirrored, "multiworker": MultiWorker}


def build(
    config: Config, network: Network, weights: Weights, strategy: Single, runtime: RuntimeOptions
) -> KerasLearner:
    """The learner of `config`, at its first weights."""
    tf.get_logger().setLevel("ERROR")  # Keras warns of callbacks that take longer than a step of so small a network
    return KerasLearner(config, network, weights, strategy, prepare(strategy, runtime))


class Sgd(tf.keras.optimizers.Optimizer):
    """SGD that keeps the plain sum of gradients, as the loop's does: a schedule then means the same in both.

    Keras' own keeps momentum times the learning rate, and takes weight decay apart from the gradient.
    """

    def __init__(
        self,
        learning_rate: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        l2: float = 0.0,
        name: str = "Sgd",
        **options: Any,
    ) -> None:
        super().__init__(name=name, **{"jit_compile": False, **options})
        self._learning_rate = self._build_learning_rate(learning_rate)
        self._options = {"momentum": momentum, "nesterov": nesterov, "l2": l2}
        self.slots: dict[str, list[tf.Variable]] = {}

    @property
    def updates(self) -> tf.Variable:
        return self.iterations

    def build(self, var_list: list[tf.Variable]) -> None:
        super().build(var_list)
        if self._options["momentum"] and not self.slots:
            self.slots["momentum"] = [self.add_variable_from_reference(v, "momentum") for v in var_list]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        momentum, nesterov, l2 = (self._options[name] for name in ("momentum", "nesterov", "l2"))
        gradient += l2 * variable
        if momentum:
            kept = self.slots["momentum"][self._index_dict[self._var_key(variable)]]
            kept.assign(momentum * kept + gradient)
            gradient = gradient + momentum * kept if nesterov else kept
        variable.assign_sub(self.learning_rate * gradient)

    def get_config(self) -> dict[str, Any]:
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {**super().get_config(), **self._options, "learning_rate": rate}


class Feed(tf.keras.callbacks.Callback):
    """Hands fit the rows of each step when the step begins, and tells when it is done."""

    _supports_tf_logs = True  # losses stay tensors: no step waits for the one before

    def __init__(
        self, batches: Iterator[Batch], after: Callable[[SupportsFloat], None], parts: int, factor: int
    ) -> None:
        super().__init__()
        self._batches, self._after, self._parts, self._factor = batches, after, parts, factor
        self._rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lr = 0.0

    def rows(self) -> Iterator[tuple[np.ndarray, ...]]:
        """The rows of each device in each step, as fit asks for them; it may ask early, and then waits."""
        while (rows := self._rows.get()) is not None:
            yield rows

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        images, labels, weights, self.lr = next(self._batches)
        pixels = np.divide(images, 255, dtype=np.float32) if images.dtype == np.uint8 else images
        arrays = (channel_last(pixels), labels, weights / np.float32(self._factor))
        for part in zip(*(np.array_split(array, self._parts) for array in arrays), strict=True):
            self._rows.put(part)
        self.model.optimizer.learning_rate.assign(self.lr)
        self.model.reset_metrics()  # so that the loss is this step's own

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        try:
            self._after(logs["loss"])
        except BaseException:
            self.on_train_end()
            raise

    def on_train_end(self, logs: Any = None) -> None:
        """Let the thread go that waits for more rows: fit does not return as long as it waits."""
        self._rows.put(None)


class KerasLearner(TensorFlowLearner):
    """A compiled Keras model, trained by its `fit`."""

    _strategy: Single

    def _make_optimizer(self, config: Config) -> Any:
        made = self._strategy.wrap(Sgd(config.lr, config.momentum, config.nesterov, config.weight_decay))
        made.build(self._variables)
        # The sum over rows, not their mean: `weights` holds what makes it the global batch's mean.
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        self._model.compile(made, loss)
        return made

    def fit(self, batches: Iterator[Batch], steps: int, after: Callable[[SupportsFloat], None]) -> None:
        """Train on `steps` batches by Keras' loop (see `learner.FitLearner`)."""
        strategy = self._strategy
        feed = Feed(batches, after, self.devices, strategy.joined_by_sum)
        image = self._model.input_shape[1:]
        signature = tuple(
            tf.TensorSpec(shape, dtype)
            for shape, dtype in (((None, *image), tf.float32), ((None,), tf.int64), ((None,), tf.float32))
        )
        rows = tf.data.Dataset.from_generator(feed.rows, output_signature=signature)
        callbacks = [feed, *strategy.callbacks(feed, steps)]
        self._model.fit(strategy.dataset(rows), steps_per_epoch=steps, verbose=0, callbacks=callbacks)
