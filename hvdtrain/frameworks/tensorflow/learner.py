"""The training loop's learner in TensorFlow."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.config.options import Config
from hvdtrain.frameworks.batches import network_rows
from hvdtrain.frameworks.devices import choose_device, pad_rows
from hvdtrain.frameworks.tensorflow.network import KerasNetwork, WeightLayout, channel_last, scale_pixels
from hvdtrain.frameworks.tensorflow.optimizer import LossScale, TensorFlowOptimizer, make_counter
from hvdtrain.frameworks.tensorflow.strategies import TensorFlowStrategy
from hvdtrain.interfaces import Batch, OptimizerState
from hvdtrain.networks.description import ShapedNetwork, Weights


def select_device(strategy: TensorFlowStrategy) -> str:
    """The device of this rank; hides the GPUs of other ranks. Raises what `choose_device` raises."""
    gpus = tf.config.list_physical_devices("GPU")
    chosen = choose_device(strategy.runtime.device, bool(gpus), len(gpus), strategy.group)
    with contextlib.suppress(RuntimeError):  # TensorFlow has started already: another learner of this process did it
        if not strategy.many_devices:
            tf.config.set_visible_devices([] if chosen == "cpu" else gpus[strategy.group.local_rank], "GPU")
    return chosen


class TensorFlowLearner:
    """A Keras network and its step, compiled into one graph, trained with one strategy."""

    state_by_rank = False

    def __init__(self, network: ShapedNetwork, weights: Weights, strategy: TensorFlowStrategy) -> None:
        config = strategy.config
        self.group, self.devices = strategy.group, strategy.devices
        self.device = select_device(strategy)
        self._config, self._network, self._strategy = config, network, strategy
        self._layout = WeightLayout(network)
        with strategy.scope():
            self._synchronized = bool(network.batch_norms) and config.batch_norm == "sync"
            sum_over_ranks = strategy.make_sum_over_ranks() if self._synchronized else None
            self._model = KerasNetwork(network, config.precision, sum_over_ranks)
            self._parameters = self._model.parameters
            self._variables = list(self._parameters.values())
            self._optimizer = self._make_optimizer(config)
            self._scale = LossScale(config.precision == "fp16", self.group.size)
            self._skipped = make_counter()
        self._check_finite = config.on_nan == "skip" or config.precision == "fp16"
        self.load(weights)
        strategy.broadcast(self._variables)
        strategy.broadcast(self._optimizer.variables)

    def _make_optimizer(self, config: Config) -> Any:
        return TensorFlowOptimizer(config, self._variables)

    @property
    def skipped(self) -> int:
        return int(self._skipped.numpy())

    def _logits(self, images: tf.Tensor) -> tf.Tensor:
        return tf.cast(self._model(scale_pixels(images), training=False), tf.float32)

    def _weighted_loss(self, weights: tf.Tensor, labels: tf.Tensor, images: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(self._model((scale_pixels(images), *others), training=True), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(losses * weights)

    @tf.function(reduce_retracing=True)
    def _step(self, *arguments: tf.Tensor) -> tf.Tensor:
        """A step on one device; the arguments are those of `_weighted_loss`, and the learning rate."""
        *rows, lr = arguments
        loss, gradients = self._gradients(*rows)
        gradients = self._scale.remove(gradients)
        if self._config.clip_norm:
            gradients, norm = tf.clip_by_global_norm(gradients, self._config.clip_norm)
        elif self._check_finite:
            norm = tf.linalg.global_norm(gradients)
        if not self._check_finite:
            self._optimizer.count(1)
            self._optimizer.apply(gradients, lr)
            return loss
        # Combined gradients are identical on all ranks, so either all ranks skip the step or none does. The counters
        # are outside of the branch, because a tf.distribute.Strategy does not assign its variables in control flow.
        finite = tf.math.is_finite(norm)
        made = tf.cast(finite, tf.int64)
        self._optimizer.count(made)
        self._skipped.assign_add(1 - made)
        self._scale.update(finite)
        if finite:
            self._optimizer.apply(gradients, lr)
        return loss

    def _gradients(self, *rows: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        """Loss and combined gradients of `accumulate` parts.

        The gradients of all parts but the last are summed in this process, and reduced together with those of the last.
        """
        parts = self._parts(*rows)
        total, earlier = tf.zeros(()), None
        for part in parts[:-1]:
            with tf.GradientTape() as tape:
                loss = self._weighted_loss(*part)
                scaled = self._scale.apply(loss)
            own = tape.gradient(scaled, self._variables)
            earlier = own if earlier is None else [a + b for a, b in zip(earlier, own, strict=True)]
            total += loss
        with tf.GradientTape() as tape:
            loss = self._weighted_loss(*parts[-1])
            scaled = self._scale.apply(loss)
            if earlier is not None:  # the gradient of sum(constant * variable) is the constant
                pairs = zip(earlier, self._variables, strict=True)
                scaled += tf.add_n([tf.reduce_sum(tf.stop_gradient(a) * variable) for a, variable in pairs])
        return total + loss, self._strategy.gradient(tape, scaled, self._variables)

    def _parts(self, *arrays: tf.Tensor) -> list[tuple[tf.Tensor, ...]]:
        count = self._config.accumulate
        return list(zip(*(tf.split(array, count) for array in arrays), strict=True)) if count > 1 else [arrays]

    def train_step(self, batch: Batch) -> tf.Tensor:
        rows = self._rows(batch, self.devices * self._config.accumulate)
        return self._strategy.run(self._step, rows, tf.constant(batch.lr, tf.float32))

    def _rows(self, batch: Batch, multiple: int) -> tuple[np.ndarray, ...]:
        """The arguments of `_weighted_loss`, padded to a multiple of that many rows."""
        weights, labels, images, *masks = pad_rows(multiple, *network_rows(self._network, self._config.seed, batch))
        real = [(weights > 0).astype(np.float32)] if self._synchronized else []
        return weights, labels, channel_last(images), *masks, *real

    def compute_gradients(self, batch: Batch) -> tf.Tensor:
        return self._only_gradients(*map(tf.constant, self._rows(batch, self._config.accumulate)))[0]

    @tf.function(reduce_retracing=True)
    def _only_gradients(self, *rows: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        # The gradients are results, so TensorFlow cannot leave them out of the graph.
        return self._gradients(*rows)

    @tf.function(reduce_retracing=True)
    def _evaluate(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self._logits(images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(losses), tf.argmax(logits, axis=1)

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, predicted = self._evaluate(tf.constant(channel_last(images)), tf.constant(labels))
        return float(loss), predicted.numpy()

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._logits(tf.constant(channel_last(images))).numpy()

    def weights(self) -> Weights:
        return {name: self._layout.to_canonical(name, v.numpy()) for name, v in self._arrays().items()}

    def _arrays(self) -> dict[str, tf.Variable]:
        """Parameters and running statistics."""
        return self._parameters | self._model.statistics

    def load(self, weights: Weights) -> None:
        self._network.check(weights)
        for name, variable in self._arrays().items():
            variable.assign(self._layout.from_canonical(name, weights[name]))

    def optimizer_state(self) -> OptimizerState:
        arrays = {
            f"{kind}/{name}": self._layout.to_canonical(name, slot.numpy())
            for kind, slots in self._optimizer.slots.items()
            for name, slot in zip(self._parameters, slots, strict=True)
        }
        return OptimizerState(arrays, updates=int(self._optimizer.updates.numpy()), extra=self._scale.state())

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for kind, slots in self._optimizer.slots.items():
            for name, slot in zip(self._parameters, slots, strict=True):
                value = state.arrays[f"{kind}/{name}"] / np.float32(state.scale)
                slot.assign(self._layout.from_canonical(name, value))
        self._optimizer.updates.assign(state.updates)
        self._scale.load(state.extra)
