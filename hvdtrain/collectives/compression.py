"""The methods of --compression, and what ranks send for each.

PowerSGD is the mean over ranks of each gradient as the product of two thin matrices, with error feedback:

Vogels, Karimireddy and Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization, 2019:
algorithm 1 with warm start, and algorithm 2. What the product lacks of a rank's gradient is added to its next one.

What ranks compute of values that they have in common, they compute element by element in a fixed order, so that
processors whose libraries multiply matrices in different orders end with the same bits.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.groups import AllreduceGroup
from hvdtrain.collectives.horovod import BYTES
from hvdtrain.collectives.mean import PackedMean, PlainMean, count, packing_of
from hvdtrain.config.forms import NONE, PACKED, POWERSGD, Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.interfaces.combining import Mean, Shapes
from hvdtrain.interfaces.learner import ERROR
from hvdtrain.networks.description import Weights

FACTORS = "factors"
"""In the state: all factors Q, float32."""
SHORTEST = 1e-20
"""Length of a column below which it is taken as zero; squares of shorter ones are not exact in float32."""


class Matrix(NamedTuple):
    """One that is sent as the product of P^T (rank, rows) and Q (rank, columns)."""

    place: slice
    """Its elements in the vector."""
    rows: int
    columns: int


class LowRankMean(PlainMean):
    """The mean as products of rank `method.rank`; of arrays that are too small for that, as it is."""

    _shapes: Shapes | None = None
    _error: np.ndarray | None = None
    _factors: np.ndarray | None = None

    def _average(self, values: np.ndarray, shapes: Shapes) -> None:
        if self._shapes is None:
            self._begin(values, shapes)
        assert self._error is not None
        with np.errstate(invalid="ignore", over="ignore"):
            local = np.add(values, self._error, dtype=np.float32)
            mean, factors = self._approximate(local)
        # Else a gradient that is not finite would stay in the error. All ranks have the same mean, and decide the same.
        if np.isfinite(mean).all():
            self._factors = factors
            np.subtract(local, mean, out=self._error)
            for place in self._whole:
                self._error[place] = 0
        values[:] = mean

    def _begin(self, values: np.ndarray, shapes: Shapes) -> None:
        """Divide the vector into matrices and what is sent as it is."""
        self._shapes = shapes
        ends = itertools.accumulate(rows * columns for rows, columns in shapes)
        matrices = [
            Matrix(slice(end - rows * columns, end), rows, columns)
            for end, (rows, columns) in zip(ends, shapes, strict=True)
        ]
        is_low = [is_low_rank(matrix.rows, matrix.columns, self.method.rank) for matrix in matrices]
        self._low = list(itertools.compress(matrices, is_low))
        self._whole = [matrix.place for matrix, low in zip(matrices, is_low, strict=True) if not low]
        columns = sum(matrix.columns for matrix in self._low)
        self._first = np.random.default_rng(self._seed).standard_normal(self.method.rank * columns, np.float32)
        if self._factors is None or self._factors.shape != self._first.shape:  # resumed with another rank
            self._factors = self._first
        if self._error is None or self._error.shape != values.shape:
            self._error = np.zeros(len(values), np.float32)

    def _approximate(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean of all ranks' vectors, float32 (n,), and the factors Q of its matrices, one after the other."""
        views = [values[matrix.place].reshape(matrix.rows, matrix.columns) for matrix in self._low]
        lefts = [right @ view.T for right, view in zip(self._rights(), views, strict=True)]
        message = np.concatenate([*map(np.ravel, lefts), *(values[place] for place in self._whole)])
        super()._average(message, ())
        lefts = [orthogonal(left) for left in self._split(message, [matrix.rows for matrix in self._low])]
        factors = np.concatenate(
            [np.zeros(0, np.float32), *((left @ view).ravel() for left, view in zip(lefts, views, strict=True))]
        )
        if self._low:
            super()._average(factors, ())
        mean, end = np.empty_like(values), len(message)
        for place in reversed(self._whole):
            start = end - (place.stop - place.start)
            mean[place], end = message[start:end], start
        rights = self._split(factors, [matrix.columns for matrix in self._low])
        for matrix, left, right in zip(self._low, lefts, rights, strict=True):
            mean[matrix.place] = product(left, right).ravel()
        return mean, factors

    def _rights(self) -> list[np.ndarray]:
        """The factors Q to begin with, (rank, columns); in place of zeros, which would stay zeros, the first ones."""
        assert self._factors is not None
        columns = [matrix.columns for matrix in self._low]
        pairs = zip(self._split(self._factors, columns), self._split(self._first, columns), strict=True)
        return [np.where(length(last)[:, None] < SHORTEST, first, last) for last, first in pairs]

    def _split(self, flat: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
        """The factors, (rank, length) each, at the beginning of a flat array."""
        rank = self.method.rank
        ends = itertools.accumulate(rank * length for length in lengths)
        return [
            flat[end - rank * length : end].reshape(rank, length) for end, length in zip(ends, lengths, strict=True)
        ]

    def arrays(self) -> Weights:
        return {} if self._error is None or self._factors is None else {ERROR: self._error, FACTORS: self._factors}

    def load(self, arrays: Weights) -> None:
        self._shapes, self._error, self._factors = None, arrays.get(ERROR), arrays.get(FACTORS)


def is_low_rank(rows: int, columns: int, rank: int) -> bool:
    """Whether the two factors of a matrix have fewer elements than the matrix."""
    return rank * (rows + columns) < rows * columns


def length(vectors: np.ndarray) -> np.ndarray:
    """The Euclidean length of each row."""
    return np.array([math.sqrt(_dot(vector, vector)) for vector in vectors.astype(np.float64)])


def orthogonal(vectors: np.ndarray) -> np.ndarray:
    """The rows, float32 (rank, n), made orthogonal by Gram and Schmidt's method, of length 1 or 0."""
    made = vectors.astype(np.float64)
    for number, vector in enumerate(made):
        before = math.sqrt(_dot(vector, vector))
        for earlier in made[:number]:
            vector -= _dot(earlier, vector) * earlier
        after = math.sqrt(_dot(vector, vector))
        # What is left of a vector that depends on the earlier ones is rounding.
        vector *= 1 / after if after > max(before * 1e-6, SHORTEST) else 0.0
    return made.astype(np.float32)


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left^T right, float32 (rows, columns), of factors (rank, rows) and (rank, columns)."""
    total = np.multiply.outer(left[0], right[0])
    for of_left, of_right in zip(left[1:], right[1:], strict=True):
        total += np.multiply.outer(of_left, of_right)
    return total


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    """The sum of products, rounded once, so that the order has no influence; NaN if it is not finite."""
    products = one * other
    return math.fsum(products.tolist()) if np.isfinite(products).all() else math.nan


def make_mean(config: Config, group: AllreduceGroup) -> Mean:
    """What computes means over the ranks of a group as --compression asks for."""
    method = parse_method(config.compression)
    kinds: dict[str, type[PlainMean]] = {NONE: PlainMean, POWERSGD: LowRankMean}
    return kinds.get(method.name, PackedMean)(method, group, config.seed)


class Traffic(NamedTuple):
    """What ranks exchange for one mean, in bytes."""

    allreduces: tuple[int, ...] = ()
    """Vectors of which each is summed by an allreduce."""
    packed: int = 0
    """A packed vector, of which each rank gets one part of all others, and all parts of the sum."""


def traffic(method: Method, shapes: Shapes) -> Traffic:
    """What a method exchanges for arrays of these shapes."""
    if method.name in PACKED:
        return Traffic(packed=packing_of(method.name, np.random.SFC64(0)).size(count(shapes)))
    if method.name != POWERSGD:
        return Traffic((BYTES[method.name] * count(shapes),))
    low = [shape for shape in shapes if is_low_rank(*shape, method.rank)]
    whole = count(shapes) - count(low)
    lefts, rights = (4 * method.rank * sum(shape[axis] for shape in low) for axis in (0, 1))
    return Traffic((4 * whole + lefts, rights) if low else (4 * whole,))
