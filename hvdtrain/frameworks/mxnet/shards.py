"""Steps in shards (`--shards`) in Gluon: gradients and statistics of each shard, and their means over all shards."""

from __future__ import annotations

from typing import Protocol, SupportsFloat

import mxnet as mx
import numpy as np

from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.frameworks.mxnet.network import Parameters, copy_into, parameter_weights
from hvdtrain.interfaces.learner import ShardLoss
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Group


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
        self.parameters, self._context = dict(parameters), context

    def read(self) -> list[np.ndarray]:
        return [*parameter_weights(self.parameters, self._context).values()] if self.parameters else []

    def write(self, arrays: list[np.ndarray]) -> None:
        for parameter, array in zip(self.parameters.values(), arrays, strict=True):
            copy_into(parameter.data(self._context), array)


class ShardedGradients:
    """The gradients of a step in shards, of one device.

    In each step: `begin`; for each shard its forward pass, `read`, its backward pass and `add`; `combine`. A shard's
    backward pass would replace the gradients of the shard before, so these are read first, while the engine computes
    the forward pass: copies of them cost 4 % of LeNet's step.
    """

    def __init__(self, group: Group, shards: int, parameters: Parameters, statistics: Statistics) -> None:
        self._sums = ShardSums(group, shards, [tuple(parameter.shape) for parameter in parameters.values()])
        self._parameters, self.statistics = list(parameters.values()), statistics
        self._start: list[np.ndarray] = []
        """The statistics at the beginning of the step."""
        self._queued: SupportsFloat | None = None
        """The loss of the shard of which the engine has, or still computes, gradients that were not read."""

    def begin(self, step: Batch) -> None:
        """Begin a step."""
        self._start, self._queued = self.statistics.read(), None
        self._sums.begin(step, self._start)

    def add(self, loss: SupportsFloat) -> None:
        """Add the shard whose backward pass is queued, with its loss."""
        self._queued = loss
        if self._start:  # the next forward pass begins with these, so it must wait
            self.read()
            self.statistics.write(self._start)

    def read(self) -> None:
        """Read the gradients of the shard that was added last; waits for them."""
        if self._queued is not None:
            gradients = [parameter.list_grad()[0].asnumpy() for parameter in self._parameters]
            self._sums.add(self._queued, gradients, self.statistics.read())
            self._queued = None

    def combine(self) -> list[ShardLoss]:
        """Replace gradients and statistics by their means over all shards; returns the losses of all.

        Call it on every rank.
        """
        self.read()
        gradients, statistics, losses = self._sums.combine()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            copy_into(parameter.list_grad()[0], gradient)
            parameter.list_data()[0]._fresh_grad = True  # else a trainer refuses to update it on a rank without shards
        self.statistics.write(statistics)
        return losses
