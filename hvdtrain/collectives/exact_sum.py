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

from hvdtrain.collectives.mean import views
from hvdtrain.interfaces.strategy import Group

NOTHING = np.empty(0)
CHUNK = 1 << 15
"""Elements that are rounded and added at a time: few enough to stay in a core's cache."""


class ExactSums(NamedTuple):
    """The sums over the shards of all ranks."""

    arrays: list[np.ndarray]
    """float64, in the shapes of the arrays; NaN where an element of a shard is not finite."""
    carried: np.ndarray
    """The sum over all ranks of what they gave besides."""


def sum_over_shards(
    group: Group,
    local_shards: Sequence[Sequence[np.ndarray]],
    shapes: Sequence[tuple[int, ...]],
    limit: int,
    carried: np.ndarray = NOTHING,
) -> ExactSums:
    """The exact sum of each array over all shards; call it on every rank.

    local_shards: the arrays of each shard of this rank, of any numeric type and of these shapes; may be empty. limit:
    the most shards that all ranks have together. carried: float64 (n,), which the first message takes along.
    """
    largest, carried = _largest(group, local_shards, len(shapes), carried)
    finite = np.isfinite(largest)
    magic = _magic_numbers(np.where(finite, largest, 0.0), limit)
    # Of other arrays all ranks know the sum: zeros, or NaN.
    sent = [number for number in range(len(shapes)) if finite[number] and largest[number]]
    sent_shapes = [shapes[number] for number in sent]
    flat = np.empty(sum(map(math.prod, sent_shapes)))
    for number, total in zip(sent, views(flat, sent_shapes), strict=True):
        of_shards = [arrays[number].reshape(-1) for arrays in local_shards]
        _sum_rounded(of_shards, magic[number], total.reshape(-1))
    summed = np.asarray(group.sum(flat)) if group.size > 1 and sent else flat
    totals = dict(zip(sent, views(summed, sent_shapes), strict=True))
    arrays = [
        totals[number] if number in totals else np.full(shape, 0.0 if finite[number] else np.nan)
        for number, shape in enumerate(shapes)
    ]
    return ExactSums(arrays, carried)


def _sum_rounded(arrays: Sequence[np.ndarray], magic: float, total: np.ndarray) -> None:
    """Set `total` to the sum of the arrays, all (n,), rounded to the grid of this magic number."""
    if not arrays:
        total.fill(0)
        return
    rounded = np.empty(min(len(total), CHUNK))
    for begin in range(0, len(total), CHUNK):
        of_chunk, *others = (array[begin : begin + CHUNK] for array in arrays)
        sums = total[begin : begin + CHUNK]
        _round(of_chunk, magic, sums)
        for of_chunk in others:
            sums += _round(of_chunk, magic, rounded[: len(sums)])


def _round(values: np.ndarray, magic: float, into: np.ndarray) -> np.ndarray:
    """Write the values into a float64 array, rounded to the grid of this magic number; returns that array."""
    np.add(values, magic, into, dtype=np.float64)
    into -= magic
    return into


def _largest(
    group: Group, local_shards: Sequence[Sequence[np.ndarray]], count: int, carried: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The largest magnitude of each array over all shards, float64 (count,), and the sum of `carried`."""
    by_rank = np.zeros((group.size, count))
    for arrays in local_shards:
        magnitudes = [max(float(array.max()), -float(array.min())) if array.size else 0.0 for array in arrays]
        by_rank[group.rank] = np.maximum(by_rank[group.rank], magnitudes)
    if group.size > 1:
        summed = np.asarray(group.sum(np.concatenate([by_rank.ravel(), carried])))
        by_rank, carried = summed[: by_rank.size].reshape(by_rank.shape), summed[by_rank.size :]
    return by_rank.max(0), carried


def _magic_numbers(largest: np.ndarray, limit: int) -> np.ndarray:
    """M of each array, float64, from its largest magnitude; 0 for an array of zeros."""
    _, bounds = np.frexp(largest)
    headroom = max(1, math.ceil(math.log2(limit)) - 1)
    return np.where(largest > 0, np.ldexp(1.5, bounds + headroom), 0.0)
