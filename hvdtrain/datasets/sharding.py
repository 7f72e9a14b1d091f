"""Which rank trains on which rows: pure functions of (seed, epoch) and the rank.

The permutation of an epoch is cut into global batches, and each global batch into one slice per rank. So the ranks of
a job together see, step by step, what a single process would see. Every rank takes the same number of steps, without
which a synchronous job hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

Remainder = Literal["drop", "pad", "exact"]


class Slice(NamedTuple):
    """One rank's part of a global batch.

    rows: row numbers in the training data, int64, shape (n,), n >= 1.
    weights: float32, shape (n,). The average over ranks of sum(weights * loss) is the mean loss over the global batch,
        so the average of the ranks' gradients is the gradient of a single process. A row of weight 0 is padding.
    """

    rows: np.ndarray
    weights: np.ndarray


def order(seed: int, epoch: int, samples: int) -> np.ndarray:
    """The permutation of `samples` rows in this epoch, int64, shape (samples,)."""
    return np.random.Generator(np.random.PCG64([seed, 1, epoch])).permutation(samples)


def steps_per_epoch(samples: int, batch: int, remainder: Remainder) -> int:
    """Number of global batches of `batch` rows in an epoch of `samples` rows."""
    return samples // batch if remainder == "drop" else -(-samples // batch)


def bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """This rank's share of `length` items: the first, and one past the last. Shares differ by at most one item."""
    return length * rank // size, length * (rank + 1) // size


def batches(rows: np.ndarray, batch: int, remainder: Remainder, rank: int, size: int) -> Iterator[Slice]:
    """This rank's slices of the global batches of `rows`: the order of an epoch, or what is left of it.

    An incomplete last global batch is dropped (`drop`), padded to its full shape with rows of weight 0 (`pad`, for
    compiled graphs, which need constant shapes), or used as it is (`exact`). `pad` and `exact` give the same gradient:
    the mean over the real rows.
    """
    for step in range(steps_per_epoch(len(rows), batch, remainder)):
        yield slice_of_step(rows, step, batch, remainder, rank, size)


def slice_of_step(rows: np.ndarray, step: int, batch: int, remainder: Remainder, rank: int, size: int) -> Slice:
    """The slice of any rank in one step, counted from 0 at the beginning of `rows`; see `batches`."""
    part = rows[step * batch : (step + 1) * batch]
    low, high = bounds(batch if remainder == "pad" else len(part), rank, size)
    real = part[low:high]
    count = max(high - low, 1)
    if len(real) == count:
        return Slice(real, np.full(count, size / len(part), np.float32))
    # A rank without a row repeats one with weight 0: it must take the step with the others.
    padded = np.concatenate([real, np.repeat(part[:1], count - len(real))])
    weights = np.zeros(count, np.float32)
    weights[: len(real)] = size / len(part)
    return Slice(padded, weights)


def evaluation(samples: int, batch: int, rank: int, size: int) -> Iterator[np.ndarray]:
    """Numbers of this rank's test rows, int64, in pieces of at most `batch`; each row is on exactly one rank."""
    low, high = bounds(samples, rank, size)
    for first in range(low, high, batch):
        yield np.arange(first, min(first + batch, high))
