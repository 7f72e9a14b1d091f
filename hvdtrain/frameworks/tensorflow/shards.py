"""Shards (`--shards`) in TensorFlow: the gradients and statistics of each.

Each number of rows has a graph of its own: a graph for any number of rows may compute different bits, and which one a
rank makes would depend on the numbers that it meets first. There are few: shards differ by one row, and a last batch
is smaller. A call of a graph takes about half a ms, so one graph calls those of all shards of this rank. They are not
inlined, so that TensorFlow optimizes each by itself, in the same way for any number of shards. It optimizes them in
another way than graphs that Python calls, which compute different bits: so every shard is computed in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import needed_multiple
from hvdtrain.frameworks.tensorflow.network import without_half
from hvdtrain.frameworks.tensorflow.objective import TensorFlowObjective
from hvdtrain.interfaces.combining import Gradients
from hvdtrain.interfaces.reading import Batch

NOT_INLINED = {"_noinline": True}
"""Attributes of a graph's function."""
RANDOM_OPERATIONS = frozenset(
    {"RandomUniform", "RandomStandardNormal", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal"}
    | {"RandomShuffle", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "Multinomial"}
)
"""Operations of TensorFlow that draw from a state of their own."""
Tensors = tuple[tf.Tensor, ...]
GradientsOf = Callable[..., tuple[tf.Tensor, list[tf.Tensor]]]
ShardValues = tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]
"""Of a shard: its loss, its gradients, and the statistics after it."""


class ShardGraphs:
    """The graphs of an objective's model, which compute the shards of a rank.

    gradients_of: the loss and the gradients of rows, at least one for each of so many `parts`.
    """

    def __init__(self, objective: TensorFlowObjective, parts: int, gradients_of: GradientsOf) -> None:
        self._objective, self._parts, self._gradients_of = objective, parts, gradients_of
        self.statistics = list(objective.statistics.values())
        if any(variable.dtype.is_complex for variable in self.statistics):
            raise UserError("--shards: the model changes a complex variable", "leave it out, or use two real variables")
        self._graphs: dict[tuple[int, ...], Callable[..., list[ShardValues]]] = {}
        """By the numbers of rows of this rank's shards."""

    def gradients(self, shards: Sequence[Batch]) -> list[Gradients]:
        """Those of each shard, which may be none."""
        values = self._call([self._arguments(shard) for shard in shards])
        return [Gradients(loss, to_arrays(gradients), to_arrays(statistics)) for loss, gradients, statistics in values]

    def _arguments(self, shard: Batch) -> Tensors:
        """The states of the generators of random numbers, and the rows."""
        states = self._objective.random_states(shard.step, shard.part)
        return tuple(map(tf.constant, (*states, *self._objective.rows(shard, needed_multiple(shard, 1, self._parts)))))

    def _call(self, arguments: Sequence[Tensors]) -> list[ShardValues]:
        """What `_shard` returns for the arguments of each shard, in one graph."""
        flat = [tensor for tensors in arguments for tensor in tensors]
        key = tuple(len(tensors[-1]) for tensors in arguments)
        if key not in self._graphs:
            functions = [self._shard.get_concrete_function(*tensors) for tensors in arguments]
            for made in functions:
                _check_random(made.graph)
            self._graphs[key] = tf.function(_calling(functions)).get_concrete_function(*flat)
        return self._graphs[key](*flat)

    @tf.function(experimental_attributes=NOT_INLINED)
    def _shard(self, *arguments: tf.Tensor) -> ShardValues:
        """Forward and backward; leaves the statistics as they were."""
        rows = self._objective.set_random_states(arguments)
        before = [tf.identity(variable) for variable in self.statistics]
        loss, gradients = self._gradients_of(*rows)
        after = [without_half(tf.identity(variable)) for variable in self.statistics]
        for variable, value in zip(self.statistics, before, strict=True):
            variable.assign(value)
        return loss, gradients, after


def _calling(functions: Sequence[Callable[..., Any]]) -> Callable[..., list[Any]]:
    """A function that calls these one after the other, so that only one needs memory for its activations.

    Its arguments are theirs, of which all have equally many.
    """

    def call_each(*tensors: tf.Tensor) -> list[Any]:
        count = len(tensors) // max(len(functions), 1)
        results: list[Any] = []
        for i, call in enumerate(functions):
            with tf.control_dependencies(tf.nest.flatten(results)[-1:]):
                results.append(call(*tensors[i * count : (i + 1) * count]))
        return results

    return call_each


def _check_random(graph: Any) -> None:
    """Raise UserError if a graph draws random numbers from a state that is not the model's: it counts calls."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    if drawn := sorted({node.op for node in nodes} & RANDOM_OPERATIONS):
        raise UserError(
            f"--shards: the model draws random numbers by {', '.join(drawn)}, which depend on the number of ranks",
            "draw them by Keras' layers or a tf.random.Generator that the model makes, instead of tf.random or tf.nn",
            option="shards",
        )


def to_arrays(tensors: list[tf.Tensor]) -> list[np.ndarray]:
    """Tensors as arrays, without a copy on the CPU: nothing writes into them."""
    return [np.asarray(tensor) for tensor in tensors]
