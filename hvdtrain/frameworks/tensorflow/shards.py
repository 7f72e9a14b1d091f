"""Steps in shards (`--shards`) in TensorFlow: gradients and statistics of each shard, and the update from their means.

Each number of rows has a graph of its own: a graph for any number of rows may compute other bits, and which one a rank
makes would depend on the numbers that it meets first. There are few: shards differ by one row, and a last batch is
smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.collectives.exact_sum import ShardSums
from hvdtrain.frameworks.tensorflow.objective import Objective
from hvdtrain.frameworks.tensorflow.strategies import Stamps, dense, monotonic_ns
from hvdtrain.interfaces import Batch, Group
from hvdtrain.system.phases import FORWARD, GRADIENTS, UPDATE, Phase, phases

ShardValues = tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]
"""Of a shard: its loss, its gradients, and the statistics after it."""


class ShardedSteps:
    """The steps of a model that an objective has made.

    shards: of each global batch, over all ranks. update: adds to a graph the update from combined gradients and a
    learning rate.
    """

    def __init__(
        self, objective: Objective, group: Group, shards: int, update: Callable[[list[tf.Tensor], tf.Tensor], None]
    ) -> None:
        self._objective, self._update = objective, update
        self._variables = list(objective.parameters.values())
        self._statistics = list(objective.statistics.values())
        self._sums = ShardSums(group, shards, [tuple(variable.shape) for variable in self._variables])
        self._graphs: dict[tuple[Any, int], Callable[..., Any]] = {}
        """By function and number of rows; kept, because finding the graph for the arguments takes a third of a ms."""
        self._stamped_phases: list[Phase] = []

    def train_step(self, shards: Sequence[Batch], lr: float) -> list[tf.Tensor]:
        """One step on this rank's shards with rows, which may be none; returns their losses. Call it on every rank."""
        self._sums.begin([variable.numpy() for variable in self._statistics])
        losses = []
        for shard in shards:
            phases.begin(FORWARD)
            self._objective.seed_step(shard.step, shard.part)
            loss, gradients, statistics = self._compute(tuple(map(tf.constant, self._objective.rows(shard, 1))))
            self._sums.add(_arrays(gradients), _arrays(statistics))
            losses.append(loss)
        phases.begin(GRADIENTS)
        gradients, statistics = self._sums.combine()
        phases.begin(UPDATE)
        self._run(self._finish, 0, *map(tf.constant, (*gradients, *statistics)), tf.constant(lr, tf.float32))
        return losses

    def _compute(self, rows: tuple[tf.Tensor, ...]) -> ShardValues:
        if not phases.is_recording:
            return self._run(self._shard, len(rows[0]), *rows)
        times, values = self._run(self._stamped_shard, len(rows[0]), *rows)
        phases.split(zip(self._stamped_phases, monotonic_ns(times.numpy()), strict=True))
        return values

    def _run(self, function: Any, rows: int, *arguments: tf.Tensor) -> Any:
        """Call a `tf.function`; all calls with so many rows have arguments of the same shapes and types."""
        graph = self._graphs.get((function, rows))
        if graph is None:
            graph = self._graphs[function, rows] = function.get_concrete_function(*arguments)
        return graph(*arguments)

    @tf.function
    def _shard(self, *rows: tf.Tensor) -> ShardValues:
        return self._make_shard(*rows)

    @tf.function
    def _stamped_shard(self, *rows: tf.Tensor) -> tuple[tf.Tensor, ShardValues]:
        """`_shard` whose backward pass begins when its loss is computed; also returns when that was."""
        stamps = Stamps()
        values = self._make_shard(*rows, stamps=stamps)
        self._stamped_phases = stamps.phases
        return stamps.times(), values

    def _make_shard(self, *rows: tf.Tensor, stamps: Stamps | None = None) -> ShardValues:
        """Forward and backward; leaves the statistics as they were."""
        weights, *others = rows
        before = [tf.identity(variable) for variable in self._statistics]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self._objective.losses(*others) * weights)
            scaled = stamps.begin_backward(loss) if stamps else loss
        gradients = dense(tape.gradient(scaled, self._variables))
        after = [tf.identity(variable) for variable in self._statistics]
        for variable, value in zip(self._statistics, before, strict=True):
            variable.assign(value)
        return loss, gradients, after

    @tf.function
    def _finish(self, *arguments: tf.Tensor) -> None:
        """Update from combined gradients, combined statistics and the learning rate."""
        *arrays, lr = arguments
        count = len(self._variables)
        for variable, value in zip(self._statistics, arrays[count:], strict=True):
            variable.assign(value)
        self._update(arrays[:count], lr)


def _arrays(tensors: list[tf.Tensor]) -> list[np.ndarray]:
    """Tensors as arrays, without a copy on the CPU: nothing writes into them."""
    return [np.asarray(tensor) for tensor in tensors]
