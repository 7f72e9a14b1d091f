"""The ways to combine the gradients of ranks on the host, in any framework, and which of them the options ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hvdtrain.collectives.compression import make_mean
from hvdtrain.collectives.groups import AllreduceGroup
from hvdtrain.collectives.mean import shape_of, views
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.config.forms import NONE
from hvdtrain.config.options import Config
from hvdtrain.interfaces.combining import Combined, Combiner, Gradients, Types
from hvdtrain.interfaces.reading import Batch

ToMatrix = Callable[[tuple[int, ...]], tuple[int, int]]
"""From the shape of an array to that of it as a matrix, in which a layer's outputs are one dimension."""
MakeCombiner = Callable[[Config, AllreduceGroup, Types, ToMatrix], Combiner]
"""Makes a combiner of gradients of these types."""


class MeanOfRanks:
    """A `Combiner`: all gradients in one array, averaged by the group's allreduce or by --compression."""

    sums_statistics = False
    _gradients: Gradients

    def __init__(self, config: Config, group: AllreduceGroup, types: Types, to_matrix: ToMatrix = shape_of) -> None:
        self.mean, self._shapes = make_mean(config, group), [shape for _, shape in types]
        self._matrices = [to_matrix(shape) for shape in self._shapes]

    def begin(self, step: Batch, statistics: Sequence[np.ndarray]) -> None:
        """Nothing is left of the step before."""

    def add(self, gradients: Gradients) -> None:
        """Take the gradients of the batch."""
        self._gradients = gradients

    def combine(self) -> Combined:
        """The mean over all ranks: their rows' weights make it that of the global batch."""
        flat = np.concatenate([array.reshape(-1) for array in self._gradients.arrays])
        self.mean.average(flat, self._matrices)
        return Combined(views(flat, self._shapes), [], self._gradients.loss)


def choose_combiner(config: Config, of_strategy: MakeCombiner | None) -> MakeCombiner | None:
    """What combines gradients on the host; None where the framework or Horovod does, or nothing.

    of_strategy: the strategy's own way.
    """
    if config.shards:
        return lambda config, group, types, _: ShardSums(group, config.shards, types)
    if config.sync_every > 1:  # ranks combine weights
        return None
    return of_strategy or (None if config.by_horovod or config.compression == NONE else MeanOfRanks)
