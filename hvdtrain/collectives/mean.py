"""The mean of a vector over all ranks, of gradients or of changes of weights: as it is, or in fewer bytes."""

from __future__ import annotations

import math

import numpy as np

from hvdtrain.collectives.packing import packing_of
from hvdtrain.config.forms import Method
from hvdtrain.interfaces.combining import Shapes
from hvdtrain.interfaces.strategy import AllreduceGroup
from hvdtrain.networks.description import Weights

ROUND = "round"
"""In the state: how many means were computed, int64 (1,)."""


def shape_of(array: tuple[int, ...]) -> tuple[int, int]:
    """An array's shape as that of a matrix: its first dimension, of a layer's outputs, by all others."""
    return (1, math.prod(array)) if len(array) < 2 else (array[0], math.prod(array[1:]))


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
