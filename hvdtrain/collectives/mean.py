"""The mean of a vector over all ranks, of gradients or of changes of weights: as it is, or in fewer bytes per value.

Those are values rounded to two bytes each, or to one with a scale for each block of values. A value that is not finite
stays so, or makes its block not finite, so that ranks notice it as without packing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from hvdtrain.collectives.groups import AllreduceGroup
from hvdtrain.config.forms import Method
from hvdtrain.interfaces.combining import Packing, Shapes
from hvdtrain.networks.description import Weights

ROUND = "round"
"""In the state: how many means were computed, int64 (1,)."""


def shape_of(array: tuple[int, ...]) -> tuple[int, int]:
    """An array's shape as that of a matrix: its first dimension, of a layer's outputs, by all others."""
    return (1, math.prod(array)) if len(array) < 2 else (array[0], math.prod(array[1:]))


def views(vector: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The beginning of a vector as arrays of these shapes, one after the other."""
    ends = itertools.accumulate(map(math.prod, shapes))
    return [vector[end - math.prod(shape) : end].reshape(shape) for end, shape in zip(ends, shapes, strict=True)]


def count(shapes: Shapes) -> int:
    """Values of arrays of these shapes."""
    return sum(rows * columns for rows, columns in shapes)


class PlainMean:
    """See `interfaces.Mean`. The mean by the group's allreduce. seed: decides the random numbers of other methods."""

    def __init__(self, method: Method, group: AllreduceGroup, seed: int) -> None:
        self.method, self._group, self._seed = method, group, seed

    def average(self, values: np.ndarray, shapes: Shapes) -> None:
        if self._group.size > 1:
            self._average(values, shapes)

    def _average(self, values: np.ndarray, shapes: Shapes) -> None:
        self._group.allreduce(values)
        values /= np.float32(self._group.size)

    def arrays(self) -> Weights:
        return {}

    def load(self, arrays: Weights) -> None:
        pass


class PackedMean(PlainMean):
    """The mean of values in fewer bytes each: see `packing`."""

    _round = 0

    def _average(self, values: np.ndarray, shapes: Shapes) -> None:
        packing = packing_of(self.method.name, np.random.SFC64([self._seed, self._round, self._group.rank]))
        total = values.astype(np.float32, copy=False)
        self._group.sum_packed(total, packing)
        np.divide(total, np.float32(self._group.size), out=values, casting="same_kind")
        self._round += 1

    def arrays(self) -> Weights:
        return {ROUND: np.array([self._round])}

    def load(self, arrays: Weights) -> None:
        self._round = int(arrays[ROUND][0]) if ROUND in arrays else 0


BLOCK = 256
"""Values that share a scale in int8: its four bytes add 1.6 %, and a large value makes few others coarse."""
LEVELS = 127
FINEST = np.float32(2.0**-100)
"""A block whose largest magnitude is below becomes zeros: the inverse of its scale would not be finite."""
RANDOM_BITS = 16
"""Of each random number by which int8 rounds."""


class BFloat16:
    """The upper half of a float32, rounded to nearest even: 8 significant bits, magnitudes as in float32."""

    def size(self, count: int) -> int:
        return 2 * count

    def pack(self, values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        packed = rounded.astype(np.uint16)
        packed[np.isnan(values)] = 0x7FC0  # rounding may have carried into the sign
        return packed.view(np.uint8)

    def unpack(self, packed: np.ndarray, count: int) -> np.ndarray:
        bits = packed.view(np.uint16).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)


class Int8:
    """Multiples of 1/127 of the largest magnitude of a block, rounded up or down at random: the mean is the value.

    random: what draws the numbers; the same seed rounds the same values in the same way. Alistarh et al., QSGD, 2017.
    """

    def __init__(self, random: np.random.BitGenerator) -> None:
        self._random = random

    def size(self, count: int) -> int:
        return count + 4 * _blocks(count)

    def pack(self, values: np.ndarray) -> np.ndarray:
        count, blocks = len(values), _blocks(len(values))
        padded = np.zeros((blocks, BLOCK), np.float32)
        padded.reshape(-1)[:count] = values
        largest = np.maximum(padded.max(axis=1, initial=0), -padded.min(axis=1, initial=0))
        # A little less than 127 levels, so that no product is rounded to one above.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            factors = np.where(largest < FINEST, np.float32(0), np.float32(LEVELS * (1 - 2**-20)) / largest)
            padded *= factors[:, None]
            padded += self._uniform(blocks)
            levels = np.floor(padded, out=padded).astype(np.int8).reshape(-1)[:count]
        scales = (largest / np.float32(LEVELS * (1 - 2**-20))).astype("<f4")
        scales[largest < FINEST] = 0
        return np.concatenate([scales.view(np.uint8), levels.view(np.uint8)])

    def _uniform(self, blocks: int) -> np.ndarray:
        """Random numbers of [0, 1), float32 (blocks, BLOCK)."""
        raw = self._random.random_raw(blocks * BLOCK * RANDOM_BITS // 64).view(np.uint16).astype(np.float32)
        raw += np.float32(0.5)
        raw *= np.float32(2.0**-RANDOM_BITS)
        return raw.reshape(blocks, BLOCK)

    def unpack(self, packed: np.ndarray, count: int) -> np.ndarray:
        blocks = _blocks(count)
        levels = np.zeros((blocks, BLOCK), np.float32)
        levels.reshape(-1)[:count] = packed[4 * blocks :].view(np.int8)
        with np.errstate(invalid="ignore"):
            levels *= packed[: 4 * blocks].view("<f4")[:, None]
        return levels.reshape(-1)[:count]


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def packing_of(name: str, random: np.random.BitGenerator) -> Packing:
    """The packing of a method among `config.forms.PACKED`. random: see `Int8`."""
    return Int8(random) if name == "int8" else BFloat16()
