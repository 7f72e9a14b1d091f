"""Training in shards in which ranks sum nothing: what the kernels make at the sizes of shards.

usage: python shards_without_sums.py FRAMEWORK [OPTIONS of training]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from hvdtrain.cli.train import main
from hvdtrain.collectives import combining
from hvdtrain.collectives.groups import AllreduceGroup
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.interfaces.combining import Combined, Gradients, ShardLoss


class NoSums(ShardSums):
    """A `Combiner` that drops all gradients and updates by zeros, so that all ranks keep the same weights."""

    def __init__(self, group: AllreduceGroup, shards: int, parameters: Sequence[tuple[int, ...]]) -> None:
        super().__init__(group, shards, parameters)
        self._zeros = [np.zeros(shape, np.float32) for shape in parameters]

    def add(self, gradients: Gradients) -> None:
        """Wait for the gradients, as a sum would."""
        self._loss, _ = float(gradients.loss), [np.asarray(array) for array in gradients.arrays]

    def combine(self) -> Combined:
        """Zeros; the statistics of LeNet are none."""
        return Combined(self._zeros, [], [ShardLoss(shard, 0, self._loss) for shard in range(self._shards)])


if __name__ == "__main__":
    combining.ShardSums = NoSums  # type: ignore[misc]
    framework, *options = sys.argv[1:]
    main(framework, argv=options)
