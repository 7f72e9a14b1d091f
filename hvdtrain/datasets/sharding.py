"""Which rank trains on which rows: pure functions of (seed, epoch) and the rank.

The permutation of an epoch is cut into global batches, and each global batch into one slice per rank, or into shards
that the ranks share. So the ranks of a job together see, step by step, what a single process would see. Every rank
takes the same number of steps, without which a synchronous job hangs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Remainder = Literal["drop", "pad", "exact"]


class Slice(NamedTuple):
    """A part of a global batch.

    rows: row numbers in the training data, int64, shape (n,), n >= 1.
    weights: float32, shape (n,). The average over parts of sum(weights * loss) is the mean loss over the global batch,
        sum(w * loss) / sum(w) where its rows have weights w, so the average of the parts' gradients is the gradient of
        a single process. Padding has weight 0.
    """

    rows: np.ndarray
    weights: np.ndarray


def order(seed: int, epoch: int, samples: int) -> np.ndarray:
    """The permutation of `samples` rows in this epoch, int64, shape (samples,)."""
    return np.random.Generator(np.random.PCG64([seed, 1, epoch])).permutation(samples)


def balanced_order(seed: int, epoch: int, labels: np.ndarray) -> np.ndarray:
    """As many rows as there are labels, integers (n,), in random order: of each class that occurs the same number.

    Numbers differ by at most one, and so does how often the rows of a class are taken: a small class is repeated, of a
    large one each epoch takes others. int64, shape (n,).
    """
    generator = np.random.Generator(np.random.PCG64([seed, 1, epoch]))
    counts = np.unique(labels, return_counts=True)[1]
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    taken = []
    for place, number in enumerate(generator.permutation(len(by_class))):  # in this order, as some get one row more
        low, high = bounds(len(labels), place, len(by_class))
        rows, count = by_class[number], high - low
        taken += [generator.permutation(rows) for _ in range(count // len(rows))]
        taken.append(generator.permutation(rows)[: count % len(rows)])
    return generator.permutation(np.concatenate(taken))


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


def slices_of_step(
    rows: np.ndarray, step: int, batch: int, remainder: Remainder, cut: Cut, weights: np.ndarray | None = None
) -> list[Slice]:
    """The slices of a cut in one step of `rows`: the order of an epoch, or what is left of it. step: counted from 0.

    weights: of all training rows, float64 (samples,), not all 0 in the step; None where all rows have the same.
    An incomplete last global batch is dropped (`drop`), padded to its full shape with rows of weight 0 (`pad`, for
    compiled graphs, which need constant shapes), or used as it is (`exact`). `pad` and `exact` give the same gradient:
    the mean over the real rows.
    """
    part = rows[step * batch : (step + 1) * batch]
    length = batch if remainder == "pad" else len(part)
    if weights is None:
        real = Slice(part, np.empty(len(part), np.float32))
        real.weights.fill(cut.parts / max(len(part), 1))  # in a third of the time of np.full
    else:
        of_rows = weights[part]
        total = math.fsum(of_rows)  # an exact sum, as on any other processor
        real = Slice(part, (cut.parts * of_rows / total).astype(np.float32))
    return [_slice(real, *bounds(length, number, cut.parts)) for number in cut.numbers]


def parts_with_rows(rows: int, batch: int, remainder: Remainder, parts: int) -> tuple[int, ...]:
    """The numbers of a step's parts that have rows. rows: those that are left of the epoch, at least 1."""
    real = min(rows, batch)
    length = batch if remainder == "pad" else real
    shares = (bounds(length, number, parts) for number in range(parts))
    return tuple(number for number, (low, high) in enumerate(shares) if low < min(high, real))


def _slice(part: Slice, low: int, high: int) -> Slice:
    """The rows `low` to `high` - 1 of a global batch."""
    rows, weights = part.rows[low:high], part.weights[low:high]
    missing = max(high - low, 1) - len(rows)
    if not missing:
        return Slice(rows, weights)
    # A rank without a row repeats one with weight 0: it must take the step with the others.
    padding = np.repeat(part.rows[:1], missing)
    return Slice(np.concatenate([rows, padding]), np.concatenate([weights, np.zeros(missing, np.float32)]))


def evaluation(samples: int, batch: int, cut: Cut) -> Iterator[np.ndarray]:
    """Numbers of this rank's test rows, int64, in pieces of at most `batch`; each row is on exactly one rank.

    The pieces are those of the cut's parts, so with shards they are the same for any number of ranks.
    """
    for part in cut.numbers:
        low, high = bounds(samples, part, cut.parts)
        for first in range(low, high, batch):
            yield np.arange(first, min(first + batch, high))
