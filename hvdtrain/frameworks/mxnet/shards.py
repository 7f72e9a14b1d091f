"""Steps in shards (`--shards`) in Gluon: the gradients and statistics of each shard, and their means over all shards."""

from __future__ import annotations

from typing import Protocol

import mxnet as mx
import numpy as np

from hvdtrain.collectives.exact_sum import ShardSums
from hvdtrain.frameworks.mxnet.network import Parameters, copy_into, parameter_weights
from hvdtrain.interfaces import Group


class Statistics(Protocol):
    """What the forward and backward passes of a model change besides gradients, such as running statistics."""

    def read(self) -> list[np.ndarray]:
        """Copies of all of them; waits for them."""
        ...

    def write(self, arrays: list[np.ndarray]) -> None:
        """Set all of them to what `read` returned, or to other values in these shapes."""
        ...


class BlockStatistics:
    """The parameters of a block that are not trained: running statistics, and those that are frozen."""

    def __init__(self, parameters: Parameters, context: mx.Context) -> None:
        self._parameters, self._context = parameters, context

    def read(self) -> list[np.ndarray]:
        return [*parameter_weights(self._parameters, self._context).values()] if self._parameters else []

    def write(self, arrays: list[np.ndarray]) -> None:
        for parameter, array in zip(self._parameters.values(), arrays, strict=True):
            copy_into(parameter.data(self._context), array)


class ShardedGradients:
    """The gradients of a step in shards, of one device: `begin`, `add` after each shard's backward pass, `combine`.

    The engine may still compute a shard when `add` returns; its gradients are read when the next shard is queued.
    """

    def __init__(self, group: Group, shards: int, parameters: Parameters, statistics: Statistics) -> None:
        self._sums = ShardSums(group, shards, [tuple(parameter.shape) for parameter in parameters.values()])
        self._parameters, self._statistics = list(parameters.values()), statistics
        self._start: list[np.ndarray] = []
        """The statistics at the beginning of the step."""
        self._queued: list[tuple[list[mx.nd.NDArray], list[np.ndarray]]] = []
        """Gradients and statistics of the latest shard."""

    def begin(self) -> None:
        """Begin a step."""
        self._start, self._queued = self._statistics.read(), []
        self._sums.begin(self._start)

    def add(self) -> None:
        """Add the shard whose backward pass is queued, and give the statistics their values of the step's beginning."""
        gradients = [parameter.list_grad()[0].copy() for parameter in self._parameters]
        self._read_queued()
        self._queued.append((gradients, self._statistics.read()))
        self._statistics.write(self._start)

    def _read_queued(self) -> None:
        for gradients, statistics in self._queued:
            self._sums.add([gradient.asnumpy() for gradient in gradients], statistics)
        self._queued = []

    def combine(self) -> None:
        """Replace gradients and statistics by their means over all shards. Call it on every rank."""
        self._read_queued()
        gradients, statistics = self._sums.combine()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            copy_into(parameter.list_grad()[0], gradient)
            parameter.list_data()[0]._fresh_grad = True  # else a trainer refuses to update it on a rank without shards
        self._statistics.write(statistics)
