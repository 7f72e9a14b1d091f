"""What a TensorFlow learner trains: a Keras model, and the loss and metrics of each row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import network_rows, pad_rows, statistics_by_rank
from hvdtrain.frameworks.patterns import freeze
from hvdtrain.frameworks.tensorflow import keras_versions
from hvdtrain.frameworks.tensorflow.network import (
    Evaluation,
    KerasNetwork,
    Values,
    WeightLayout,
    building,
    channel_last,
    check_losses,
    evaluation,
    first_values,
    gradients_of,
    row_losses,
    scale_pixels,
    task_model,
    why_no_graph,
    without_half,
)
from hvdtrain.frameworks.tensorflow.progress import calling_task
from hvdtrain.frameworks.tensorflow.strategies import TensorFlowStrategy
from hvdtrain.frameworks.user_code import TaskOutputs, failing_model, no_gradient, nothing_to_train
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights, check_weights
from hvdtrain.tasks.target import NetworkTarget, step_seeds
from hvdtrain.tasks.user import UserTask

Tensors = tuple[tf.Tensor, ...]


class TensorFlowObjective:
    """A model, and what its outputs are worth. Arrays and tensors have one row each for n samples.

    It is made in the scope of its strategy. `parameters` are trained, --freeze names those that are `frozen`, and
    `statistics` are all other variables that a checkpoint has. All have canonical names.
    """

    model: tf.keras.Model
    parameters: dict[str, tf.Variable]
    listed: Mapping[str, Any] = MappingProxyType({})
    """The parameters of a task's model as Keras lists them: with constraints, and as its optimizers know them."""
    frozen: dict[str, tf.Variable]
    statistics: dict[str, tf.Variable]
    local_weights: frozenset[str]

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All that a checkpoint has."""
        return self.parameters | self.frozen | self.statistics

    def rows(self, batch: Batch, multiple: int) -> tuple[np.ndarray, ...]:
        """The weights of the rows, and the arguments of `losses`, padded to a multiple of that many rows."""
        raise NotImplementedError

    def losses(self, *rows: tf.Tensor) -> tf.Tensor:
        """The loss of each row in training, float32 (n,)."""
        raise NotImplementedError

    def eval_rows(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The arguments of `evaluate` for the arrays of a source."""
        return arrays

    def evaluate(self, *rows: tf.Tensor) -> Evaluation:
        """What the outputs are worth in an evaluation."""
        raise NotImplementedError

    def random_states(self, step: int, part: int) -> list[np.ndarray]:
        """States of the model's generators of random numbers for a part of a step (`Batch.part`).

        A resumed run then draws the same numbers.
        """
        return []

    def set_random_states(self, values: Sequence[Any]) -> Sequence[Any]:
        """Set the generators to the first of these values, as `random_states` has them; returns those that remain."""
        return values

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """Logits, float32 (n, classes), of channel-last images, by a network as data."""
        raise NotImplementedError

    def load(self, weights: Weights) -> None:
        """Set parameters and running statistics. Raises ValueError if names or shapes differ."""
        self.check(weights)
        for name, variable in self.variables.items():
            variable.assign(tf.cast(self.from_canonical(name, weights[name]), variable.dtype))

    def check(self, weights: Weights) -> None:
        """Raise ValueError unless these are the names and shapes of all variables."""
        raise NotImplementedError

    def to_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """TensorFlow's array of a variable, or of its optimizer state, in the canonical layout."""
        return np.array(value, np.float32 if value.dtype == tf.bfloat16 else value.dtype)

    def from_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """The inverse of `to_canonical`."""
        return value


class TensorFlowNetworkObjective(TensorFlowObjective):
    """Classify images, or predict a number for each, with a network as data."""

    def __init__(self, target: NetworkTarget, strategy: TensorFlowStrategy) -> None:
        config, network = strategy.config, target.network
        self._network, self._seed, self._layout = network, config.seed, WeightLayout(network)
        self._synchronized = bool(network.batch_norms) and config.batch_norm == "sync"
        sum_over_ranks = strategy.make_sum_over_ranks() if self._synchronized else None
        self.model = KerasNetwork(network, config.precision, sum_over_ranks)
        self.statistics = self.model.statistics
        self.parameters, self.frozen = freeze(config.freeze, self.model.parameters, self.statistics)
        self.local_weights = statistics_by_rank(network, config)

    def rows(self, batch: Batch, multiple: int) -> tuple[np.ndarray, ...]:
        weights, labels, images, *masks = pad_rows(multiple, *network_rows(self._network, self._seed, batch))
        real = [(weights > 0).astype(np.float32)] if self._synchronized else []
        return weights, labels, channel_last(images), *masks, *real

    def losses(self, *rows: tf.Tensor) -> tf.Tensor:
        labels, images, *others = rows
        logits = tf.cast(self.model((scale_pixels(images), *others), training=True), tf.float32)
        return row_losses(logits, labels)

    def eval_rows(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        images, labels = arrays
        return channel_last(images), labels

    def evaluate(self, *rows: tf.Tensor) -> Evaluation:
        images, labels = rows
        return evaluation(self.logits(images), labels)

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        return tf.cast(self.model(scale_pixels(images), training=False), tf.float32)

    def check(self, weights: Weights) -> None:
        self._network.check(weights)

    def to_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        return self._layout.to_canonical(name, value)

    def from_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        return self._layout.from_canonical(name, value)


class TensorFlowTaskObjective(TaskOutputs, TensorFlowObjective):
    """A task of the user's own. Its model is made with seeded generators, so all ranks begin with the same weights.

    Raises UserError for methods that do not return what they must, found out on the first rows.
    """

    tensor, int64 = tf.Tensor, tf.int64

    def __init__(self, task: UserTask, strategy: TensorFlowStrategy) -> None:
        self._task, self._seed, self._precision = task, strategy.config.seed, strategy.config.precision
        self._unused: list[tf.Variable] = []
        self._generators: list[tf.Variable] = []
        """The states of the model's generators of random numbers, in the order in which they were made."""
        self._made: Values = []
        """Variables of the model, with the values that they were made with."""
        with tf.variable_creator_scope(self._create_variable), building(self._precision), calling_task():
            rows, made = task.try_out(self._build)
            first = first_values(made, lambda: self._first_outputs(rows[: task.inputs], training=False))
            self._made.clear()
            with tf.GradientTape() as tape:  # makes the layers, too, that are called in training only
                losses = self._try_out(rows)
            first += first_values(self._made, lambda: self._first_outputs(rows[: task.inputs], training=True))
        self._name_variables(made + self._made)
        self.parameters, self.frozen = freeze(strategy.config.freeze, self.parameters, self.statistics)
        self._find_unused(tape, losses)
        check_losses(task, self.model, strategy.many_devices)
        for variable, value in first:
            variable.assign(value)
        self._compile(*rows)

    def _create_variable(self, following: Any, **options: Any) -> tf.Variable:
        """Make a variable of the model. Of statistics and generators, each rank has the values of its first device."""
        variable = keras_versions.create_for_first_replica(following, **options)
        if options.get("name") in keras_versions.GENERATOR_STATES:
            self._generators.append(variable)
        elif tf.executing_eagerly():
            self._made.append((variable, variable.numpy()))
        return variable

    def _build(self, arrays: tuple[np.ndarray, ...]) -> tuple[Tensors, Values]:
        """Make the model and its layers for evaluations; returns the rows, and the variables as they were made."""
        tf.keras.utils.set_random_seed(self._seed % (1 << 32))
        self._generators.clear()
        self._made.clear()
        self.model = task_model(self._task, self._precision)
        before = self._values()
        rows = tuple(map(tf.constant, arrays))
        self._first_outputs(rows[: self._task.inputs], training=False)
        return rows, before + self._made

    def _first_outputs(self, inputs: Tensors, training: bool) -> Any:
        """Build the layers that are called in training, or in an evaluation."""
        try:
            return self._outputs(inputs, training)
        except Exception as error:
            raise failing_model(self._task, inputs, error, keras_versions.message_of(error)) from error

    def _values(self) -> Values:
        """The variables that the model has so far, with their values."""
        variables = [variable for variable, _ in self._made]
        self._made.clear()
        with contextlib.suppress(ValueError):  # Keras lists none before all parts of a model are built
            known = set(map(id, variables))
            variables += [v for v in map(keras_versions.to_tensorflow, self.model.variables) if id(v) not in known]
        return [(variable, variable.numpy()) for variable in variables]

    def _name_variables(self, values: Values) -> None:
        """Name variables by their place in the model: Keras' own names contain the number of models made before.

        values: before the first call in training. Of those that Keras does not list, such as the state of a stateful
        layer, the model's are those that it has changed.
        """
        states = {id(state) for state in self._generators}
        trainable = {id(keras_versions.to_tensorflow(v)): v for v in self.model.trainable_variables}
        of_keras = list(map(keras_versions.to_tensorflow, self.model.variables))
        listed = states | set(map(id, of_keras))
        variables = [variable for variable in of_keras if id(variable) not in states]
        variables += [v for v, value in values if id(v) not in listed and not np.array_equal(v.numpy(), value)]
        names = keras_versions.by_name(variables)
        self.parameters = {name: array for name, array in names.items() if id(array) in trainable}
        self.listed = {name: trainable[id(array)] for name, array in self.parameters.items()}
        self.statistics = {name: array for name, array in names.items() if id(array) not in trainable}
        self.local_weights = frozenset(self.statistics)
        if not self.parameters:
            raise nothing_to_train(self._task)
        for name, variable in self.parameters.items():
            is_scale = getattr(self.listed[name], "overwrite_with_gradient", False)  # whose gradient is its next value
            if is_scale or variable.dtype != tf.float32:
                problem = f"returned a model with a variable of type {'float8' if is_scale else variable.dtype.name}"
                raise self._task.error("model", problem, "use float32, and --precision for others")

    def _try_out(self, rows: Tensors) -> tf.Tensor:
        """Compute losses and metrics once; returns the losses."""
        inputs, targets = self._split(rows)
        outputs = self._first_outputs(inputs, training=True)
        losses = self._with_added(outputs, targets)
        self._metrics_of(outputs, targets)
        self._examine(outputs, targets, self._losses_of(outputs, targets))
        return losses

    def _find_unused(self, tape: tf.GradientTape, losses: tf.Tensor) -> None:
        """Find the parameters without gradients."""
        variables = list(self.parameters.values())
        gradients = gradients_of(self._task, tape, losses, variables, self.variables.values())
        if all(gradient is None for gradient in gradients):
            raise no_gradient(self._task)
        self._unused = [variable for variable, gradient in zip(variables, gradients, strict=True) if gradient is None]

    def _compile(self, *rows: tf.Tensor) -> None:
        """Make graphs of training and evaluation, which fail for methods that need the values of tensors."""
        run = tf.distribute.get_strategy().run
        try:
            for function in (lambda *rows: run(self.losses, rows), self.evaluate):
                tf.function(function).get_concrete_function(*rows)
        except Exception as error:
            raise UserError(
                f"--model {self._task.name}: TensorFlow cannot compile it into a graph: {why_no_graph(error):.400}",
                "compute with TensorFlow's operations only",
            ) from error

    def _outputs(self, inputs: Tensors, training: bool) -> Any:
        outputs = self.model(inputs if len(inputs) > 1 else inputs[0], training=training)
        return tf.nest.map_structure(without_half, outputs)

    def rows(self, batch: Batch, multiple: int) -> tuple[np.ndarray, ...]:
        return pad_rows(multiple, batch.weights, *batch.arrays)

    def losses(self, *rows: tf.Tensor) -> tf.Tensor:
        inputs, targets = self._split(rows)
        with calling_task():
            losses = self._with_added(self._outputs(inputs, training=True), targets)
        if self._unused:  # a gradient of zeros, so that every strategy treats it like the others
            zeros = (tf.where(False, variable, tf.zeros_like(variable)) for variable in self._unused)  # 0 * inf is NaN
            losses += tf.add_n(list(map(tf.reduce_sum, zeros)))
        return losses

    def evaluate(self, *rows: tf.Tensor) -> Evaluation:
        inputs, targets = self._split(rows)
        with calling_task():
            outputs = self._outputs(inputs, training=False)
            predicted = None if self._task.has("losses") else tf.argmax(outputs, 1)
            return self._losses_of(outputs, targets), self._metrics_of(outputs, targets), predicted

    def _with_added(self, outputs: Any, targets: Tensors) -> tf.Tensor:
        """The losses of rows in training, each with what regularizers and add_loss() add to the mean of a batch."""
        added = self.model.losses  # of the latest call, so before the task may call it again
        if odd := [loss for loss in added if loss.shape.rank]:
            problem = f"returned a model that adds a loss of shape {tuple(odd[0].shape)}"
            raise self._task.error("model", problem, "give add_loss() a scalar, the mean over the rows")
        return sum((tf.cast(loss, tf.float32) for loss in added), self._losses_of(outputs, targets))

    def _losses_of(self, outputs: Any, targets: Tensors) -> tf.Tensor:
        return tf.cast(super()._losses_of(outputs, targets), tf.float32)

    def _has_shape(self, values: tf.Tensor, rows: int | None) -> bool:
        return values.shape.rank == 1 and values.shape.is_compatible_with([rows])

    @staticmethod
    def _dimensions(values: tf.Tensor) -> int | None:
        return values.shape.rank

    @staticmethod
    def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    @staticmethod
    def _is_right(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.argmax(logits, 1) == labels

    def random_states(self, step: int, part: int) -> list[np.ndarray]:
        states = []
        for number, state in enumerate(self._generators):
            seeds = step_seeds(self._seed, step, part, number)
            count = state.shape.num_elements() * state.dtype.size // 4  # of words, for int64, or uint32 in Keras 3
            states.append(seeds.generate_state(count).view(state.dtype.as_numpy_dtype))
        return states

    def set_random_states(self, values: Sequence[Any]) -> Sequence[Any]:
        count = len(self._generators)
        for state, value in zip(self._generators, values[:count], strict=True):
            state.assign(value)
        return values[count:]

    def check(self, weights: Weights) -> None:
        check_weights(weights, {name: tuple(variable.shape) for name, variable in self.variables.items()})


OBJECTIVES: dict[str, Callable[[Any, TensorFlowStrategy], TensorFlowObjective]] = {
    "network": TensorFlowNetworkObjective,
    "task": TensorFlowTaskObjective,
}
"""By kind of target."""
