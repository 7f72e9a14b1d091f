"""The training loop's learner in TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.config.options import Config
from hvdtrain.frameworks.averages import check_own_averages
from hvdtrain.frameworks.batches import choose_device, device_number, needed_multiple
from hvdtrain.frameworks.engine import Engine
from hvdtrain.frameworks.own_optimizers import is_of_kind, with_kind, with_optimizer
from hvdtrain.frameworks.tensorflow.keras_versions import global_settings
from hvdtrain.frameworks.tensorflow.network import POLICIES, channel_last, without_half
from hvdtrain.frameworks.tensorflow.objective import OBJECTIVES
from hvdtrain.frameworks.tensorflow.optimizer import (
    KerasOwnAverages,
    KerasTaskOptimizer,
    LossScale,
    TensorFlowAverages,
    TensorFlowOptimizer,
    make_counter,
)
from hvdtrain.frameworks.tensorflow.shards import ShardGraphs
from hvdtrain.frameworks.tensorflow.strategies import TensorFlowStrategy, dense, to_matrix
from hvdtrain.interfaces.combining import Combined, Gradients, StepLoss, Types, type_of
from hvdtrain.interfaces.learner import Evaluated, OptimizerState
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import STEP, UPDATE, phases
from hvdtrain.tasks.target import Target


def select_device(strategy: TensorFlowStrategy) -> str:
    """The device of this rank; hides the GPUs of other ranks. Raises what `choose_device` raises."""
    gpus = tf.config.list_physical_devices("GPU")
    chosen = choose_device(strategy, len(gpus))
    with contextlib.suppress(RuntimeError):  # TensorFlow has started already: another learner of this process did it
        if not strategy.many_devices:
            tf.config.set_visible_devices([] if chosen == "cpu" else gpus[device_number(chosen)], "GPU")
            if chosen != "cpu" and strategy.config.shards:  # else the first rank of a GPU takes all of its memory
                tf.config.experimental.set_memory_growth(gpus[device_number(chosen)], True)
    return chosen


class TensorFlowLearner(Engine):
    """A Keras model and its step, compiled into one graph, trained with one strategy."""

    to_matrix = staticmethod(to_matrix)
    _step_loss: StepLoss
    """Of a step whose gradients are combined on the host, within its graph."""
    _failure: Exception | None = None
    """What failed there."""

    def __init__(self, target: Target, weights: Weights | None, strategy: TensorFlowStrategy) -> None:
        config = strategy.config
        self.group, self.devices, self.state_by_rank = strategy.group, strategy.devices, strategy.state_by_rank
        self.device = select_device(strategy)
        self._config, self._strategy = config, strategy
        with strategy.scope():
            self._objective = OBJECTIVES[target.kind](target, strategy)
            self._model, self._parameters = self._objective.model, self._objective.parameters
            if not target.is_portable:
                self.global_settings = global_settings() | {"policy": POLICIES[config.precision]}
            self._variables = list(self._parameters.values())
            own_task = with_optimizer(target)
            listed = {name: self._objective.listed[name] for name in self._parameters} if own_task else {}
            self._own = KerasTaskOptimizer(own_task, listed) if own_task else None
            self._optimizer = self._own or self._make_optimizer(config)
            self._scale = LossScale(config.precision == "fp16", self.group.size)
            self._skipped = make_counter()
            if self._own and self._own.averages:
                check_own_averages(config)
                self._averages = KerasOwnAverages(self._own.averages, listed, self._objective)
            elif config.ema:
                self._averages = TensorFlowAverages(config.ema, self._objective)
        self._check_finite = config.on_nan == "skip" or config.precision == "fp16"
        # AutoGraph translates the code of tasks. Networks have none that needs it, and it takes 0.5 s of their start.
        compiled = functools.partial(tf.function, autograph=not target.is_portable)
        self._step_graph = compiled(self._make_step)
        self._update_graph = compiled(self._make_update)
        self._update_call: Callable[..., None] | None = None
        # In shards, each number of rows has a graph of its own; see `ShardGraphs`.
        self._evaluate = compiled(self._make_evaluation, reduce_retracing=not config.shards)
        self.local_weights, self.frozen = self._objective.local_weights, frozenset(self._objective.frozen)
        if config.shards:
            self._shards = ShardGraphs(self._objective, config.accumulate, self._gradients)
        if weights:
            self.load(weights)
        strategy.broadcast([*self._variables, *self._objective.frozen.values()])
        strategy.broadcast(self._optimizer.variables)
        self._begin_training()

    def _make_optimizer(self, config: Config) -> Any:
        return TensorFlowOptimizer(config, self._parameters, self._objective.listed)

    @property
    def skipped(self) -> int:
        return int(self._skipped.numpy())

    @skipped.setter
    def skipped(self, count: int) -> None:
        self._skipped.assign(count)

    def _weighted_loss(self, weights: tf.Tensor, *rows: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self._objective.losses(*rows) * weights)

    def _make_step(self, *arguments: tf.Tensor) -> tf.Tensor:
        """A step on one device; the arguments are those of `_weighted_loss`, and the learning rate."""
        *rows, lr = arguments
        loss, gradients = self._gradients(*rows)
        if self._combiner:
            gradients = self._combined_on_host(loss, gradients)
        self._update(gradients, lr)
        return loss

    def _combined_on_host(self, loss: tf.Tensor, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Called inside of a step, as a second graph for the update would take half a ms more."""
        combined = tf.numpy_function(self._combine, [loss, *gradients], [tf.float32] * len(gradients))
        return [tf.ensure_shape(one, gradient.shape) for one, gradient in zip(combined, gradients, strict=True)]

    def _combine(self, loss: np.float32, *gradients: np.ndarray) -> list[np.ndarray]:
        try:
            self.add([Gradients(loss, [*gradients], [])])
            combined = self.combine()
        except Exception as error:  # which the step raises: TensorFlow would print it, and raise one of its own
            self._failure = error
            return [*gradients]
        self._step_loss = combined.loss
        phases.begin(UPDATE)
        return combined.arrays

    def _update(self, gradients: list[tf.Tensor], lr: tf.Tensor) -> None:
        """Update the parameters from the combined gradients."""
        gradients = self._scale.remove(gradients)
        if self._config.clip_norm:
            gradients, norm = tf.clip_by_global_norm(gradients, self._config.clip_norm)
        elif self._check_finite:
            norm = tf.linalg.global_norm(gradients)
        if not self._check_finite:
            self._optimizer.count(1)
            self._apply(gradients, lr)
            return
        # Combined gradients are identical on all ranks, so either all ranks skip the step or none does. The counters
        # are outside of the branch, because a tf.distribute.Strategy does not assign its variables in control flow.
        finite = tf.math.is_finite(norm)
        made = tf.cast(finite, tf.int64)
        self._optimizer.count(made)
        self._skipped.assign_add(1 - made)
        self._scale.update(finite)
        tf.cond(finite, lambda: self._apply(gradients, lr), lambda: None)

    def _apply(self, gradients: list[tf.Tensor], lr: tf.Tensor) -> None:
        self._optimizer.apply(gradients, lr)
        if isinstance(self._averages, TensorFlowAverages):
            self._averages.update()

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
            gradients = dense(tape.gradient(scaled, self._variables))
            earlier = [a + b for a, b in zip(earlier, gradients, strict=True)] if earlier else gradients
            total += loss
        with tf.GradientTape() as tape:
            loss = self._weighted_loss(*parts[-1])
            scaled = self._scale.apply(loss)
            if earlier:  # the gradient of sum(constant * variable) is the constant
                pairs = zip(earlier, self._variables, strict=True)
                scaled += tf.add_n([tf.reduce_sum(tf.stop_gradient(a) * variable) for a, variable in pairs])
        return total + loss, self._strategy.gradient(tape, scaled, self._variables)

    def _parts(self, *arrays: tf.Tensor) -> list[tuple[tf.Tensor, ...]]:
        """Some of them have a row more than others: padding would be in the statistics of batch normalization."""
        if self._config.accumulate == 1:
            return [arrays]
        count, rows = self._config.accumulate, arrays[0].shape[0] or tf.shape(arrays[0])[0]
        sizes = [(rows + count - 1 - number) // count for number in range(count)]
        return list(zip(*(tf.split(array, sizes, num=count) for array in arrays), strict=True))

    def train_step(self, batch: Batch) -> StepLoss:
        if self._averages:
            self._averages.begin(batch.step)
        self._lr = tf.constant(batch.lr, tf.float32)
        if not self._combiner or self._in_shards:
            return super().train_step(batch)
        self.begin_step(batch)
        self.step_by_framework(batch)
        if self._failure:
            raise self._failure
        return self._step_loss

    def step_by_framework(self, batch: Batch) -> StepLoss:
        phases.begin(STEP)
        return self._strategy.run(self._step_graph, self._rows(batch), self._lr)

    def _rows(self, batch: Batch) -> tuple[np.ndarray, ...]:
        """The arguments of `_weighted_loss`; the generators draw the random numbers of the batch."""
        self._objective.set_random_states(self._objective.random_states(batch.step, batch.part))
        return self._objective.rows(batch, needed_multiple(batch, self.devices, self._config.accumulate))

    def gradient_types(self) -> Types:
        return tuple(type_of(variable.dtype, variable.shape) for variable in self._variables)

    def start_statistics(self) -> list[np.ndarray]:
        return [without_half(tf.identity(variable)).numpy() for variable in self._shards.statistics]

    def gradients(self, parts: Sequence[Batch]) -> Iterable[Gradients]:
        return self._shards.gradients(parts)

    def update(self, combined: Combined) -> None:
        phases.begin(UPDATE)
        arguments = (*map(tf.constant, (*combined.arrays, *combined.statistics)), self._lr)
        if not self._update_call:  # kept: to find it takes a third of a ms
            self._update_call = self._update_graph.get_concrete_function(*arguments)
        self._update_call(*arguments)

    def _make_update(self, *arguments: tf.Tensor) -> None:
        """Update from combined gradients, combined statistics and the learning rate."""
        *arrays, lr = arguments
        count = len(self._variables)
        for variable, value in zip(self._shards.statistics if self._in_shards else (), arrays[count:], strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        self._update(arrays[:count], lr)

    def keep_in_shards(self, names: list[str]) -> None:
        self._shards.statistics += [self._objective.variables[name] for name in names]

    def try_step(self, batch: Batch) -> tf.Tensor:
        _, *rows = self._objective.rows(batch, parts := self.devices * self._config.accumulate)
        with self._strategy.scope():
            return self._objective.losses(*(tf.constant(array[: len(array) // parts]) for array in rows))

    def _make_evaluation(self, count: tf.Tensor, *rows: tf.Tensor) -> tuple[Any, Any, tf.Tensor | None]:
        """The losses of so many rows, the sums of losses and metrics, and classes; the others are padding."""
        losses, metrics, predicted = self._objective.evaluate(*rows)
        by_row = tf.nest.map_structure(lambda values: tf.cast(values[:count], tf.float64), (losses, metrics))
        classes = None if predicted is None else predicted[:count]
        return by_row[0], tf.nest.map_structure(tf.reduce_sum, by_row), classes

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        rows = self._objective.eval_rows(arrays)
        evaluated = self._evaluate(tf.constant(len(arrays[0])), *map(tf.constant, rows))
        losses, (loss, metrics), predicted = evaluated
        sums = {name: float(value) for name, value in metrics.items()}
        return Evaluated(float(loss), sums, None if predicted is None else predicted.numpy(), losses.numpy)

    def try_evaluation(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        tf.config.run_functions_eagerly(True)
        try:
            return super().try_evaluation(arrays)
        finally:
            tf.config.run_functions_eagerly(False)

    def seed(self, step: int, part: int) -> None:
        self._objective.set_random_states(self._objective.random_states(step, part))

    def seed_trial(self) -> None:
        seed = self._config.seed % (1 << 32)
        for seed_generator in (random.seed, np.random.seed, tf.random.set_seed):  # of operations without one
            seed_generator(seed)  # not Keras' set_random_seed: Keras 3 would make another one for all layers
        super().seed_trial()

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._objective.logits(tf.constant(channel_last(images))).numpy()

    def weights(self) -> Weights:
        return {name: self._objective.to_canonical(name, v.numpy()) for name, v in self._objective.variables.items()}

    def load(self, weights: Weights) -> None:
        self._objective.load(weights)

    @property
    def learning_rate(self) -> float | None:
        return self._own.learning_rate if self._own else None

    def settings(self) -> dict[str, Any]:
        return self._own.settings() if self._own else {}

    def accepts_state(self, state: OptimizerState) -> bool:
        return (not self._own or is_of_kind(state, self.optimizer_state())) and super().accepts_state(state)

    def optimizer_state(self) -> OptimizerState:
        if self._own:
            return with_kind(OptimizerState(self._own.arrays(), extra=self._scale.state()), self._own.keras)
        arrays = {
            f"{kind}/{name}": self._objective.to_canonical(name, slot.numpy())
            for kind, slots in self._optimizer.slots.items()
            for name, slot in zip(self._parameters, slots, strict=True)
        }
        return OptimizerState(arrays, updates=int(self._optimizer.updates.numpy()), extra=self._scale.state())

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for kind, slots in self._optimizer.slots.items():
            for name, slot in zip(self._parameters, slots, strict=True):
                value = state.arrays[f"{kind}/{name}"] / np.float32(state.scale)
                slot.assign(self._objective.from_canonical(name, value))
        if self._own:
            self._own.load(state.arrays)
        else:
            self._optimizer.updates.assign(state.updates)
        self._scale.load(state.extra)
