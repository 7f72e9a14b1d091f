"""The gradients, running statistics and losses of a step in shards (`--shards`), combined over all ranks.

Besides the largest magnitudes, the first sum of a step carries what each rank says about its shards: each value is that
of one rank, and the others add zeros. So all ranks know all losses, that each shard was computed exactly once, and
whether two ranks computed the same bits for the shard that is audited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import SupportsFloat

import numpy as np

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer, hash_shard
from hvdtrain.collectives.exact_sum import sum_over_shards
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces.combining import Combined, Gradients, ShardLoss
from hvdtrain.interfaces.reading import Audit, Batch
from hvdtrain.interfaces.strategy import Group


class ShardSums:
    """A `Combiner`: the means of the gradients, float32, over all shards, and of the statistics over those with rows.

    A shard without rows has no gradients, which count as 0. shards: of a global batch. parameters: shapes of the
    gradients.
    """

    mean = None
    sums_statistics = True

    def __init__(self, group: Group, shards: int, parameters: Sequence[tuple[int, ...]]) -> None:
        self._group, self._shards, self._parameters = group, shards, list(parameters)
        self._start: list[np.ndarray] = []
        self._infinite: list[int] = []
        """Which of these have elements that are not finite, as of a mask, or of a minimum before its first value."""
        self._added: list[list[np.ndarray]] = []
        self._losses: list[SupportsFloat] = []
        self._remaining: Iterator[Batch] = iter(())
        """Shards that are still to be added."""
        self._hash = 0
        """Of the audited shard, if this rank has it."""

    def begin(self, step: Batch, statistics: Sequence[np.ndarray]) -> None:
        """Begin a step, whose `shards` are added in their order, with the statistics with which every shard begins."""
        self._step, self._start = step, list(statistics)
        self._infinite = [number for number, array in enumerate(self._start) if not np.isfinite(array).all()]
        self._added, self._losses, self._hash = [], [], 0
        self._remaining = iter(step.shards or ())

    def add(self, gradients: Gradients) -> None:
        """Add the step's next shard."""
        shard, audit = next(self._remaining), self._step.audit
        changes = [_change(before, after) for before, after in zip(self._start, gradients.statistics, strict=True)]
        pairs = [(self._start[number], gradients.statistics[number]) for number in self._infinite]
        became_finite = [(np.isfinite(after) & ~np.isfinite(before)).astype(np.float64) for before, after in pairs]
        arrays = [*gradients.arrays, *changes, *became_finite]
        if audit and audit.shard == shard.part:
            self._hash = hash_shard(float(gradients.loss), arrays)
        if not shard.is_witness:
            self._added.append(arrays)
            self._losses.append(gradients.loss)

    def combine(self) -> Combined:
        """Combine the shards of all ranks; call it on every rank.

        Raises TrainingError if a shard that has rows was not computed by exactly one rank, ShardsDiffer if the audited
        one has different bits on the rank that checks it, and ShardHashes in a step that only computes it again.
        """
        if self._step.audit and self._step.audit.only:
            raise ShardHashes(self._group.gather(self._hash))
        infinite = [self._start[number] for number in self._infinite]
        shapes = [*self._parameters, *(array.shape for array in (*self._start, *infinite))]
        sums = sum_over_shards(self._group, self._added, shapes, self._shards, self._packed_status())
        self._added = []
        losses = self._unpack_status(sums.carried)
        means = [np.empty(shape, np.float32) for shape in self._parameters]
        for total, mean in zip(sums.arrays, means, strict=False):  # after the gradients come the statistics
            np.divide(total, self._shards, mean, casting="same_kind")
        changes = [total / max(len(losses), 1) for total in sums.arrays[len(means) :]]
        statistics = [_changed(before, change) for before, change in zip(self._start, changes, strict=False)]
        for number, before, ended in zip(self._infinite, infinite, changes[len(self._start) :], strict=True):
            # Where all shards have a finite value now; else one that is infinite makes the mean infinite.
            statistics[number] = np.where(np.isfinite(before) | (ended == 1), statistics[number], before)
        return Combined(means, statistics, losses)

    def _packed_status(self) -> np.ndarray:
        """What this rank says about its shards, float64.

        By shard whether it computed it, its own number, and the loss. The hash of the audited shard, on the rank whose
        shard it is and on the one that checks it. By rank the newest membership that it knows.
        """
        shards, hashes, memberships = np.zeros((3, self._shards)), np.zeros(2), np.zeros(self._group.size)
        added = (shard for shard in self._step.shards or () if not shard.is_witness)
        for shard, loss in zip(added, self._losses, strict=True):
            shards[:, shard.part] += 1, self._group.rank, float(loss)
        if audit := self._step.audit:
            hashes[int(audit.by == self._group.rank)] = self._hash
        memberships[self._group.rank] = self._group.known_membership
        return np.concatenate([shards.ravel(), hashes, memberships])

    def _unpack_status(self, carried: np.ndarray) -> list[ShardLoss]:
        """The losses, from the sum of what all ranks said; sets the membership that all know."""
        of_shards, hashes, memberships = np.split(carried, [3 * self._shards, 3 * self._shards + 2])
        computed, ranks, losses = of_shards.reshape(3, self._shards).tolist()
        self._group.agreed_membership = int(memberships.min())
        self._check(computed)
        if audit := self._step.audit:
            self._compare(audit, int(ranks[audit.shard]), *map(int, hashes))
        return [
            ShardLoss(shard, int(rank), loss)
            for shard, (count, rank, loss) in enumerate(zip(computed, ranks, losses, strict=True))
            if count
        ]

    def _compare(self, audit: Audit, owner: int, of_owner: int, of_witness: int) -> None:
        """Raise ShardsDiffer unless both ranks have the same hash."""
        if of_owner != of_witness:
            raise ShardsDiffer(self._step.step, audit.shard, {owner: of_owner, audit.by: of_witness})

    def _check(self, computed: Sequence[float]) -> None:
        """Raise TrainingError unless each shard with rows was computed once. computed: how often, by shard."""
        wrong = {shard: int(count) for shard, count in enumerate(computed) if count > 1}
        wrong |= {shard: 0 for shard in self._step.all_shards if not computed[shard]}
        if wrong:
            shard, count = min(wrong.items())
            by = f"by {count} ranks" if count else "by no rank"
            problem = f"shard {shard} of step {self._step.step} was computed {by}, so its gradient is wrong"
            raise TrainingError(problem, step=self._step.step)


def _change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """after - before, float64; `after` for elements that became finite, and 0 for those that stay, finite or not."""
    with np.errstate(invalid="ignore"):
        stays = (after == before) | ((after != after) & (before != before))
        change = np.subtract(after, _finite(before, after), dtype=np.float64)
        return np.where(stays, 0.0, change)


def _changed(before: np.ndarray, change: np.ndarray) -> np.ndarray:
    """before + change, in the type of `before`; elements without a change keep their bits."""
    with np.errstate(invalid="ignore"):
        total = np.add(_finite(before, change), change, dtype=np.float64)
        rounded = np.asarray(np.rint(total) if before.dtype.kind in "iu" else total).astype(before.dtype)
    return np.where((change == 0) & np.isfinite(before), before, rounded)


def _finite(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """`before`, with 0 in the place of elements that were not finite where `after` is."""
    return np.where(np.isfinite(before) | ~np.isfinite(after), before, before.dtype.type(0))
