"""Training in shards whose gradients are combined in another way than by `--shards`.

usage: python other_shard_sums.py none|allreduce FRAMEWORK [OPTIONS of training]

- none: ranks sum nothing, which leaves what the kernels take at the sizes of shards.
- allreduce: each rank adds its shards in float32, and one allreduce adds those of the ranks: with a network's running
  statistics, but not losses, and without a check of who computed what. The bits depend on the number of ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from hvdtrain.cli.train import main
from hvdtrain.collectives import combining
from hvdtrain.collectives.groups import AllreduceGroup
from hvdtrain.collectives.mean import views
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.interfaces.combining import Combined, Gradients, ShardLoss, Types
from hvdtrain.interfaces.reading import Batch


class NoSums(ShardSums):
    """A `Combiner` that drops all gradients and updates by zeros, so that all ranks keep the same weights."""

    def __init__(self, group: AllreduceGroup, shards: int, parameters: Types) -> None:
        super().__init__(group, shards, parameters)
        self._zeros = [np.zeros(shape, np.float32) for _, shape in parameters]

    def begin(self, step: Batch, statistics: Sequence[np.ndarray]) -> None:
        """Keep the statistics, as each step leaves them."""
        self._start = list(statistics)

    def add(self, gradients: Gradients) -> None:
        """Wait for the gradients, as a sum would."""
        self._loss, _ = float(gradients.loss), [np.asarray(array) for array in gradients.arrays]

    def combine(self) -> Combined:
        """Zeros."""
        return Combined(self._zeros, self._start, self._same_losses())

    def _same_losses(self) -> list[ShardLoss]:
        return [ShardLoss(shard, 0, self._loss) for shard in range(self._shards)]


class OneAllreduce(NoSums):
    """A `Combiner`: the sum over a rank's shards, and one float32 allreduce."""

    def begin(self, step: Batch, statistics: Sequence[np.ndarray]) -> None:
        """Begin with sums of zeros."""
        super().begin(step, statistics)
        shapes = [array.shape for array in (*self._zeros, *self._start)]
        self._total = np.zeros(sum(array.size for array in (*self._zeros, *self._start)), np.float32)
        self._sums = views(self._total, shapes)

    def add(self, gradients: Gradients) -> None:
        """Add a shard."""
        self._loss = float(gradients.loss)
        for total, array in zip(self._sums, (*gradients.arrays, *gradients.statistics), strict=True):
            np.add(total, array, total, casting="same_kind")

    def combine(self) -> Combined:
        """The means over all shards."""
        if self._group.size > 1:
            self._group.allreduce(self._total)  # type: ignore[attr-defined]
        self._total /= np.float32(self._shards)
        means, statistics = self._sums[: len(self._zeros)], self._sums[len(self._zeros) :]
        ended = [mean.astype(start.dtype) for mean, start in zip(statistics, self._start, strict=True)]
        return Combined(means, ended, self._same_losses())


if __name__ == "__main__":
    way, framework, *options = sys.argv[1:]
    combining.ShardSums = {"none": NoSums, "allreduce": OneAllreduce}[way]  # type: ignore[misc]
    main(framework, argv=options)
