"""Steps in shards, or in one batch, for learners in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from hvdtrain.datasets import sharding
from hvdtrain.interfaces import Batch
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, Dropout, Flatten, Pool, Relu
from hvdtrain.tasks.target import NetworkTarget
from support.networks import shaped

SHARDS = 5
SIZES = (32, 32, 3, 32)
"""Rows of the steps: of shards that differ by one row, and of a batch with fewer rows than shards.

TensorFlow compiles a step for each number of rows.
"""
IMAGES = np.random.default_rng(0).random((64, 1, 8, 8), np.float32), np.random.default_rng(1).integers(0, 10, 64)
FIRST, LAST = (Conv(4, 3),), (Relu(), Pool("average", 2), Flatten(), Dense(12), Relu(), Dropout(0.4), Dense(CLASSES))
NETWORK = NetworkTarget(shaped(Network((*FIRST, BatchNorm(), *LAST)), (1, 8, 8)))
WITHOUT_STATISTICS = NetworkTarget(shaped(Network((*FIRST, *LAST)), (1, 8, 8)))


ALONE, THREE_RANKS = ([sharding.Assignment.contiguous(ranks, SHARDS)] for ranks in (1, 3))
MOVED = [
    sharding.Assignment(by_rank)
    for by_rank in (((0, 2, 3), (1, 4)), ((3,), (0, 1, 2, 4)), ((), (0, 1, 2, 3, 4)), ((0, 1, 2), (3, 4)))
]
"""Assignments of the shards to two ranks that follow each other: apart, few of them on a rank, and none."""


def steps(arrays: tuple[np.ndarray, ...], *cuts: sharding.Cut, lr: float = 0.1) -> Iterator[Batch]:
    """The steps of a rank: in shards, or with all rows of its cut as one batch if that has not SHARDS parts.

    cuts: those of the steps in turn.
    """
    random = np.random.default_rng(2)
    for step, (size, cut) in enumerate(zip(SIZES, itertools.cycle(cuts))):
        order = random.permutation(len(arrays[0]))[:size]
        parts = zip(cut.numbers, sharding.slices_of_step(order, 0, size, "exact", cut), strict=True)
        batches = [
            Batch(tuple(array[rows] for array in arrays), weights, lr, step, rows, part)
            for part, (rows, weights) in parts
            if weights.any()
        ]
        yield Batch((), np.ones(0), lr, step, order, shards=tuple(batches)) if cut.parts == SHARDS else batches[0]


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same arrays, bit for bit."""
    assert actual.keys() == expected.keys()
    for name in actual:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)
