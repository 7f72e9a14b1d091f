"""The gradients, running statistics and losses of a step in shards (`--shards`), combined over all ranks.

With the sums of its shards, each rank sends a report about them. So all ranks know all losses, that each shard was
computed exactly once, and whether two ranks computed the same bits for the shard that is audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsFloat

import numpy as np

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer, hash_shard
from hvdtrain.collectives.tree_sum import TreeSum
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces.combining import Combined, Gradients, ShardLoss, Types, type_of
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Group


class ShardSums:
    """A `Combiner`: the means of the gradients over all shards, and of the statistics over those with rows.

    A shard without rows has no gradients, which count as 0. shards: of a global batch. parameters: types of the
    gradients.
    """

    mean = None
    sums_statistics = True

    def __init__(self, group: Group, shards: int, parameters: Types) -> None:
        self._group, self._shards, self._parameters = group, shards, parameters
        of_shard = (shards,)
        self._report_type = np.dtype(
            [("computed", "<i8", of_shard), ("loss", "<f8", of_shard), ("hash", "<u8"), ("membership", "<i8")]
        )
        """What a rank says of a step, in words of 8 bytes: how often it has computed each shard, with which loss, the
        hash of the audited one if it has it, and the newest membership that it knows."""

    def begin(self, step: Batch, statistics: Sequence[np.ndarray]) -> None:
        """Begin a step, whose `shards` are added in their order, with the statistics with which every shard begins."""
        self._step, self._start, self._remaining = step, list(statistics), iter(step.shards or ())
        # With 0 for infinities, as in a mask or a minimum before its first value, so that differences are finite.
        self._bases = [np.where(np.isfinite(array), array, array.dtype.type(0)) for array in self._start]
        types = self._parameters + tuple(type_of(np.float64, array.shape) for array in self._start)
        self._sums = TreeSum(self._group, step.by_rank, types, self._report_type.itemsize // 8)
        self._losses: list[tuple[int, SupportsFloat]] = []
        self._hash = 0  # of the audited shard, if this rank computes it

    def add(self, gradients: Gradients) -> None:
        """Add the step's next shard."""
        shard, audit = next(self._remaining), self._step.audit
        pairs = zip(gradients.statistics, self._bases, strict=True)
        arrays = [*gradients.arrays, *(np.subtract(after, base, dtype=np.float64) for after, base in pairs)]
        if audit and audit.shard == shard.part:
            self._hash = hash_shard(float(gradients.loss), arrays)
        if not shard.is_witness:
            self._sums.add(shard.part, arrays)
            self._losses.append((shard.part, gradients.loss))

    def combine(self) -> Combined:
        """Combine the shards of all ranks; call it on every rank.

        Raises TrainingError unless each shard that has rows was computed once, by its rank; ShardsDiffer if the audited
        one has different bits on the rank that checks it; and ShardHashes in a step that only computes it again.
        """
        if self._step.audit and self._step.audit.only:
            raise ShardHashes(self._group.gather(self._hash))
        reports = self._sums.exchange(self._report().view(np.float64))
        losses = self._read(reports.view(self._report_type)[:, 0])
        arrays = self._sums.total()
        means, totals = arrays[: len(self._parameters)], arrays[len(self._parameters) :]
        for mean in means:
            mean /= self._shards
        changes = zip(self._start, self._bases, (total / len(losses) for total in totals), strict=True)
        return Combined(means, [_changed(*change) for change in changes], losses)

    def _report(self) -> np.ndarray:
        """What this rank says about its shards, of the report's type, (1,)."""
        report = np.zeros(1, self._report_type)
        computed, losses = report["computed"][0], report["loss"][0]
        for shard, loss in self._losses:
            computed[shard] += 1
            losses[shard] = float(loss)
        report["hash"], report["membership"] = self._hash, self._group.known_membership
        return report

    def _read(self, reports: np.ndarray) -> list[ShardLoss]:
        """The losses, from the reports of all ranks, (ranks,); sets the membership that all know."""
        step, audit = self._step, self._step.audit
        self._group.agreed_membership = int(reports["membership"].min())
        expected = np.zeros_like(reports["computed"])
        for rank, shards in enumerate(step.by_rank):
            expected[rank, list(shards)] = 1
        if (wrong := reports["computed"] != expected).any():
            rank, shard = np.argwhere(wrong)[0]
            times = f"{reports['computed'][rank, shard]} time(s) instead of {expected[rank, shard]}"
            problem = f"rank {self._group.ranks[rank]} computed shard {shard} of step {step.step} {times}"
            raise TrainingError(problem, "let each rank compute each of its shards once", step=step.step)
        owners = {shard: rank for rank, shards in enumerate(step.by_rank) for shard in shards}
        if audit:
            hashes = {rank: int(reports["hash"][rank]) for rank in (owners[audit.shard], audit.by)}
            if len({*hashes.values()}) > 1:
                raise ShardsDiffer(step.step, audit.shard, hashes)
        losses = reports["loss"].tolist()
        return [ShardLoss(shard, rank, losses[rank][shard]) for shard, rank in sorted(owners.items())]


def _changed(start: np.ndarray, base: np.ndarray, change: np.ndarray) -> np.ndarray:
    """base + change, in the type of `start`, whose elements keep their bits where nothing has changed them."""
    with np.errstate(invalid="ignore"):
        total = np.add(base, change, dtype=np.float64)
        rounded = np.asarray(np.rint(total) if start.dtype.kind in "iu" else total).astype(start.dtype)
    return np.where((change == 0) & np.isfinite(start), start, rounded)
