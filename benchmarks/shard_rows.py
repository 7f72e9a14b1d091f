"""The rows of larger_than_memory.py, from its tar shards; or decoded and in memory, of one as all are the same."""

import os
import sys
from pathlib import Path

import numpy as np
from larger_than_memory import CLASSES, SIDE

sys.path.append(str(Path(__file__).parent.parent / "examples"))
from own_formats import TarShards

SHARDS = os.environ["SHARDS"]


def from_shards():
    """Training rows, test rows, and the number of classes."""
    return TarShards(f"{SHARDS}/train-*.tar", SIDE), TarShards(f"{SHARDS}/test-*.tar", SIDE), CLASSES


def in_memory():
    """The same rows as arrays."""
    count = len(list(Path(SHARDS).glob("train-*.tar")))
    images, labels = arrays(TarShards(f"{SHARDS}/train-000000.tar", SIDE))
    test = arrays(TarShards(f"{SHARDS}/test-*.tar", SIDE))
    return (np.tile(images, (count, 1, 1, 1)), np.tile(labels, count)), test, CLASSES


def arrays(rows):
    """All images and labels."""
    return np.stack([np.asarray(rows[row][0]) for row in range(len(rows))]), np.array(rows.targets)
