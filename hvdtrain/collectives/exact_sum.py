"""The exact sum over all shards of a global batch (`--shards`): the same bits on any number of ranks, in any order.

Each element is rounded in float64 to a multiple of a grid, which all elements of its array share: (x + M) - M with
M = 1.5 * 2^e rounds x to a multiple of 2^(e - 52) as long as |x| <= 2^(e - 1). Sums of such multiples are exact in
float64 while they stay below 2^(e + 1), so neither their order nor the library that adds them has an influence. Let
all elements of an array be below 2^x, and V be the number of shards: e = x + max(1, ceil(log2 V) - 1) is enough.

Rounding to the grid changes an element by at most 2^(e - 53). With 8 shards that is 2^-50 of the largest element, so
that a mean has the precision of float32 unless it is 2^25 times smaller. x comes from the largest element of all
shards, which the ranks exchange before: nothing depends on an earlier step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvdtrain.interfaces import Group


class ExactSums(NamedTuple):
    """The sums over the shards of all ranks."""

    arrays: list[np.ndarray]
    """float64, in the shapes of the arrays; NaN where an element of a shard is not finite."""
    shards: int
    """Number of shards that were added."""


def sum_over_shards(
    group: Group, local_shards: Sequence[Sequence[np.ndarray]], shapes: Sequence[tuple[int, ...]], limit: int
) -> ExactSums:
    """The exact sum of each array over all shards; call it on every rank.

    local_shards: the arrays of each shard of this rank, of any numeric type and of these shapes; may be empty. limit:
    the most shards that all ranks have together.
    """
    largest, shards = _largest(group, local_shards, len(shapes))
    finite = np.isfinite(largest)
    magic = _magic_numbers(np.where(finite, largest, 0.0), limit)
    # Of other arrays all ranks know the sum: zeros, or NaN.
    sent = [number for number in range(len(shapes)) if finite[number] and largest[number]]
    sent_shapes = [shapes[number] for number in sent]
    flat = np.zeros(sum(map(math.prod, sent_shapes)))
    for number, total in zip(sent, _views(flat, sent_shapes), strict=True):
        _add_rounded([arrays[number] for arrays in local_shards], magic[number], total)
    summed = np.asarray(group.sum(flat)) if group.size > 1 and sent else flat
    arrays = [np.full(shape, 0.0 if ok else np.nan) for shape, ok in zip(shapes, finite, strict=True)]
    for number, total in zip(sent, _views(summed, sent_shapes), strict=True):
        arrays[number] = total
    return ExactSums(arrays, shards)


def _add_rounded(arrays: Sequence[np.ndarray], magic: float, total: np.ndarray) -> None:
    """Add arrays to `total`, rounded to the grid of this magic number."""
    rounded = np.empty_like(total)
    for array in arrays:
        np.add(array, magic, rounded, dtype=np.float64)
        rounded -= magic
        total += rounded


def _largest(group: Group, local_shards: Sequence[Sequence[np.ndarray]], count: int) -> tuple[np.ndarray, int]:
    """The largest magnitude of each array over all shards, float64 (count,), and the number of shards."""
    by_rank = np.zeros((group.size, count + 1))
    for arrays in local_shards:
        magnitudes = [max(float(array.max()), -float(array.min())) if array.size else 0.0 for array in arrays]
        by_rank[group.rank, :count] = np.maximum(by_rank[group.rank, :count], magnitudes)
    by_rank[group.rank, count] = len(local_shards)
    if group.size > 1:
        by_rank = np.asarray(group.sum(by_rank.ravel())).reshape(by_rank.shape)
    return by_rank[:, :count].max(0), round(by_rank[:, count].sum())


def _magic_numbers(largest: np.ndarray, limit: int) -> np.ndarray:
    """M of each array, float64, from its largest magnitude; 0 for an array of zeros."""
    _, bounds = np.frexp(largest)
    headroom = max(1, math.ceil(math.log2(limit)) - 1)
    return np.where(largest > 0, np.ldexp(1.5, bounds + headroom), 0.0)


def _views(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Parts of a vector, in these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
    return [flat[end - math.prod(shape) : end].reshape(shape) for end, shape in zip(ends, shapes, strict=True)]


class ShardSums:
    """The gradients and running statistics of a step in shards: collected on this rank, and combined over all ranks.

    shards: of a global batch. parameters: shapes of the gradients.
    """

    def __init__(self, group: Group, shards: int, parameters: Sequence[tuple[int, ...]]) -> None:
        self._group, self._shards, self._parameters = group, shards, list(parameters)
        self._start: list[np.ndarray] = []
        self._added: list[list[np.ndarray]] = []

    def begin(self, statistics: Sequence[np.ndarray]) -> None:
        """Begin a step, with these running statistics, which every shard begins with."""
        self._start, self._added = list(statistics), []

    def add(self, gradients: Sequence[np.ndarray], statistics: Sequence[np.ndarray]) -> None:
        """Add a shard: its gradients, float32, and the statistics after it. The arrays may not change afterwards."""
        changes = [_change(before, after) for before, after in zip(self._start, statistics, strict=True)]
        self._added.append([*gradients, *changes])

    def combine(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The mean gradients over all shards, float32, and the statistics' means over the shards that were added.

        A shard that was not added has no rows, and so no gradient. Call it on every rank.
        """
        shapes = [*self._parameters, *(array.shape for array in self._start)]
        sums, shards = sum_over_shards(self._group, self._added, shapes, self._shards)
        self._added = []
        count = len(self._parameters)
        # NumPy turns arrays without dimensions into scalars.
        gradients = [np.asarray(total / self._shards, np.float32) for total in sums[:count]]
        changes = (total / max(shards, 1) for total in sums[count:])
        return gradients, [_changed(before, change) for before, change in zip(self._start, changes, strict=True)]


def _change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """after - before, float64; 0 for elements that stay as they are, which may be infinite, as in masks, or NaN."""
    with np.errstate(invalid="ignore"):
        stays = (after == before) | ((after != after) & (before != before))
        return np.where(stays, 0.0, np.subtract(after, before, dtype=np.float64))


def _changed(before: np.ndarray, change: np.ndarray) -> np.ndarray:
    """before + change, in the type of `before`; elements without a change keep their bits."""
    with np.errstate(invalid="ignore"):
        total = np.add(before, change, dtype=np.float64)
        rounded = np.asarray(np.rint(total) if before.dtype.kind in "iu" else total).astype(before.dtype)
    return np.where(change == 0, before, rounded)
