"""Who trains on which rows: pure functions from (seed, epoch) to this rank's rows.

One permutation an epoch is cut into global batches, and each global batch into one slice a rank. So the ranks of a
job together see, step by step, what a single process would see. Every rank takes the same number of steps, which a
synchronous job needs in order not to hang.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

Remainder = Literal["drop", "pad", "exact"]


class Slice(NamedTuple):
    """One rank's part of a global batch.

    rows: row numbers, int64, shape (n,), n >= 1.
    weights: float32, shape (n,); the sum over all ranks of sum(weights * loss) / size is the mean loss over the
        global batch, so the average of the ranks' gradients is the gradient of one process.
    """

    rows: np.ndarray
    weights: np.ndarray


def order(seed: int, epoch: int, samples: int) -> np.ndarray:
    """The permutation of `samples` rows in this epoch."""
    return np.random.Generator(np.random.PCG64([seed, 1, epoch])).permutation(samples)


def steps_per_epoch(samples: int, batch: int, remainder: Remainder) -> int:
    """Number of global batches of `batch` rows in an epoch of `samples` rows."""
    return samples // batch if remainder == "drop" else -(-samples // batch)


def bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """First and one past the last of `length` items for this rank: contiguous parts that differ by one at most."""
    return length * rank // size, length * (rank + 1) // size


def batches(rows: np.ndarray, batch: int, remainder: Remainder, rank: int, size: int) -> Iterator[Slice]:
    """This rank's slices of the global batches of `rows`: an epoch's order, or what is left of it.

    An incomplete last global batch is left out (`drop`), filled up to its full shape with rows of weight zero
    (`pad`: shapes stay constant, as compiled graphs like), or taken as it is (`exact`). `pad` and `exact` give the
    same gradient: the mean over the real rows.
    """
    for step in range(steps_per_epoch(len(rows), batch, remainder)):
        part = rows[step * batch : (step + 1) * batch]
        yield part_of(part, batch if remainder == "pad" else len(part), rank, size)


def part_of(part: np.ndarray, shape: int, rank: int, size: int) -> Slice:
    """This rank's slice of the real rows `part`, in a global batch of `shape` rows."""
    low, high = bounds(shape, rank, size)
    real = part[low:high]
    count = max(high - low, 1)
    # A rank with fewer rows repeats one at weight zero: it must take the step with the others.
    rows = np.concatenate([real, np.repeat(part[:1], count - len(real))])
    weights = np.zeros(count, np.float32)
    weights[: len(real)] = size / len(part)
    return Slice(rows, weights)


def evaluation(samples: int, batch: int, rank: int, size: int) -> Iterator[slice]:
    """This rank's share of the test rows, each row on exactly one rank, in pieces of at most `batch` rows."""
    low, high = bounds(samples, rank, size)
    for first in range(low, high, batch):
        yield slice(first, min(first + batch, high))
