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
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.groups import AllreduceGroup
from hvdtrain.collectives.horovod import BYTES
from hvdtrain.collectives.mean import PackedMean, PlainMean, count, packing_of, views
from hvdtrain.config.forms import NONE, PACKED, POWERSGD, Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.interfaces.combining import Mean, Shapes
from hvdtrain.interfaces.learner import ERROR
from hvdtrain.networks.description import Weights

FACTORS = "factors"
"""In the state: all factors Q, float32."""
SHORTEST = 1e-20
"""Length of a column below which it is taken as zero; squares of shorter ones are not exact in float32."""


class LowRankMean(PlainMean):
    """The mean as products of rank `method.rank`; of arrays that are too small for that, as it is.

    A matrix is sent as the product of P^T (rank, rows) and Q (rank, columns).
    """

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
            for whole in self._divide(self._error)[1]:
                whole.fill(0)
        values[:] = mean

    def _begin(self, values: np.ndarray, shapes: Shapes) -> None:
        """Begin with the state that was loaded, if it has these shapes."""
        self._shapes, rank = shapes, self.method.rank
        self._is_low = [is_low_rank(*shape, rank) for shape in shapes]
        low = list(itertools.compress(shapes, self._is_low))
        self._left_shapes, self._right_shapes = ([(rank, shape[axis]) for shape in low] for axis in (0, 1))
        self._first = np.random.default_rng(self._seed).standard_normal(count(self._right_shapes), np.float32)
        if self._factors is None or self._factors.shape != self._first.shape:  # resumed with another rank
            self._factors = self._first
        if self._error is None or self._error.shape != values.shape:
            self._error = np.zeros(len(values), np.float32)

    def _divide(self, vector: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Its arrays that are sent as products, and those that are sent as they are."""
        arrays = views(vector, self._shapes or ())
        whole = itertools.compress(arrays, map(operator.not_, self._is_low))
        return [*itertools.compress(arrays, self._is_low)], [*whole]

    def _approximate(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean of all ranks' vectors, float32 (n,), and the factors Q of its matrices, one after the other."""
        low, whole = self._divide(values)
        message = _joined([*(right @ matrix.T for right, matrix in zip(self._rights(), low, strict=True)), *whole])
        super()._average(message, ())
        received = views(message, [*self._left_shapes, *(array.shape for array in whole)])
        lefts = [orthogonal(left) for left in received[: len(low)]]
        factors = _joined([left @ matrix for left, matrix in zip(lefts, low, strict=True)])
        if low:
            super()._average(factors, ())
        mean = np.empty_like(values)
        low, whole = self._divide(mean)
        for matrix, left, right in zip(low, lefts, views(factors, self._right_shapes), strict=True):
            matrix[:] = product(left, right)
        for array, sent in zip(whole, received[len(low) :], strict=True):
            array[:] = sent
        return mean, factors

    def _rights(self) -> list[np.ndarray]:
        """The factors Q to begin with, (rank, columns); in place of zeros, which would stay zeros, the first ones."""
        assert self._factors is not None
        pairs = zip(views(self._factors, self._right_shapes), views(self._first, self._right_shapes), strict=True)
        return [np.where(length(last)[:, None] < SHORTEST, first, last) for last, first in pairs]

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


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of float32 as a vector, one after the other."""
    return np.concatenate([np.zeros(0, np.float32), *map(np.ravel, arrays)])


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
