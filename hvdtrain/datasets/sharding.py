"""Which rank trains on which rows: pure functions of (seed, epoch) and the rank.

The permutation of an epoch is cut into global batches, and each global batch into one slice per rank, or into shards
that the ranks share. So the ranks of a job together see, step by step, what a single process would see. Every rank
takes the same number of steps, without which a synchronous job hangs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Remainder = Literal["drop", "pad", "exact"]


class Slice(NamedTuple):
    """A part of a global batch.

    rows: row numbers in the training data, int64, shape (n,), n >= 1.
    weights: float32, shape (n,). The average over parts of sum(weights * loss) is the mean loss over the global batch,
        so the average of the parts' gradients is the gradient of a single process. A row of weight 0 is padding.
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


class Cut(NamedTuple):
    """How each global batch is cut, and which parts are this rank's: one part for each rank, or fixed shards.

    parts: of a global batch. numbers: those of this rank, ascending; none where ranks outnumber shards.
    """

    parts: int
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, size: int, shards: int = 0) -> Cut:
        """That of a rank before shards move. shards: of each global batch (--shards); 0 for a part for each rank."""
        return cls(shards, tuple(range(*bounds(shards, rank, size)))) if shards else cls(size, (rank,))


@dataclass(frozen=True)
class Assignment:
    """Which parts of each global batch each rank computes. Each part is on exactly one rank, or ValueError is raised.

    by_rank: the numbers of each rank's parts, ascending; a rank may have none.
    """

    by_rank: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        numbers = sorted(number for of_rank in self.by_rank for number in of_rank)
        if numbers != list(range(len(numbers))) or any(list(of_rank) != sorted(of_rank) for of_rank in self.by_rank):
            raise ValueError(f"not each part on exactly one rank: {self.by_rank}")

    @classmethod
    @functools.cache  # asked for in each step
    def contiguous(cls, size: int, shards: int = 0) -> Assignment:
        """The one that a job of `size` ranks begins with: `Cut.of` of each rank."""
        return cls(tuple(Cut.of(rank, size, shards).numbers for rank in range(size)))

    @property
    def counts(self) -> list[int]:
        """Number of parts that each rank computes."""
        return [len(numbers) for numbers in self.by_rank]

    def cut(self, rank: int) -> Cut:
        return Cut(sum(self.counts), self.by_rank[rank])


def slices_of_step(rows: np.ndarray, step: int, batch: int, remainder: Remainder, cut: Cut) -> list[Slice]:
    """The slices of a cut in one step of `rows`: the order of an epoch, or what is left of it. step: counted from 0.

    An incomplete last global batch is dropped (`drop`), padded to its full shape with rows of weight 0 (`pad`, for
    compiled graphs, which need constant shapes), or used as it is (`exact`). `pad` and `exact` give the same gradient:
    the mean over the real rows.
    """
    part = rows[step * batch : (step + 1) * batch]
    length = batch if remainder == "pad" else len(part)
    return [_slice(part, *bounds(length, number, cut.parts), cut.parts) for number in cut.numbers]


def parts_with_rows(rows: int, batch: int, remainder: Remainder, parts: int) -> tuple[int, ...]:
    """The numbers of a step's parts that have rows. rows: those that are left of the epoch, at least 1."""
    real = min(rows, batch)
    length = batch if remainder == "pad" else real
    shares = (bounds(length, number, parts) for number in range(parts))
    return tuple(number for number, (low, high) in enumerate(shares) if low < min(high, real))


def _slice(part: np.ndarray, low: int, high: int, parts: int) -> Slice:
    """The rows `low` to `high` - 1 of a global batch, which is cut into so many parts."""
    real = part[low:high]
    count = max(high - low, 1)
    if len(real) == count:
        return Slice(real, np.full(count, parts / len(part), np.float32))
    # A rank without a row repeats one with weight 0: it must take the step with the others.
    padded = np.concatenate([real, np.repeat(part[:1], count - len(real))])
    weights = np.zeros(count, np.float32)
    weights[: len(real)] = parts / len(part)
    return Slice(padded, weights)


def evaluation(samples: int, batch: int, cut: Cut) -> Iterator[np.ndarray]:
    """Numbers of this rank's test rows, int64, in pieces of at most `batch`; each row is on exactly one rank.

    The pieces are those of the cut's parts, so with shards they are the same for any number of ranks.
    """
    for part in cut.numbers:
        low, high = bounds(samples, part, cut.parts)
        for first in range(low, high, batch):
            yield np.arange(first, min(first + batch, high))
