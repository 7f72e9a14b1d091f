"""Random numbers of rows: functions of seed, epoch and a row's number, the same with any ranks, batches and workers."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from hvdtrain.interfaces.reading import Draw

OF_ROWS, OF_GLOBAL_GENERATORS = 3, 4
"""Second words of the seeds of rows; the order of an epoch has 1, the steps of learners have 2."""


FIRST = Draw(0, 0)
"""Where rows are only looked at, before training."""


class _Key(ISeedSequence):
    """The key of Philox, as it is: a SeedSequence would hash it again for each row, which takes most of the time."""

    def __init__(self, draw: Draw, purpose: int) -> None:
        self._words = np.random.SeedSequence([draw.seed, purpose, draw.epoch]).generate_state(2, np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:
        return self._words

    def bits(self, row: int) -> np.random.Philox:
        """The random bits of a row, whose number is the highest of the four words of the counter."""
        # NumPy's types leave out that seeds may be of its abstract class.
        return np.random.Philox(self, counter=np.array([0, 0, 0, row], np.uint64))  # type: ignore[arg-type]


def row_generators(draw: Draw, rows: np.ndarray) -> list[np.random.Generator]:
    """A generator for each of these rows, int64 (n,).

    Seed and epoch are the key of Philox, and the row's number is a part of its counter. So each row has a sequence of
    2^192 blocks of its own, and making a generator takes about 3 microseconds.
    """
    key = _Key(draw, OF_ROWS)
    return [np.random.Generator(key.bits(row)) for row in rows.tolist()]


@contextlib.contextmanager
def seeded_rows(draw: Draw) -> Iterator[Callable[[int], None]]:
    """Call what this returns with a row's number to seed the generators that code draws from without asking for one.

    They are Python's, NumPy's and, if it has been imported, PyTorch's for the CPU; afterwards they are as before. That
    takes about 11 microseconds for each row, and 70 for each batch.
    """
    of_torch: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    before = random.getstate(), np.random.get_state(), of_torch.get_state() if of_torch else None

    key = _Key(draw, OF_GLOBAL_GENERATORS)

    def seed(row: int) -> None:
        word = int(key.bits(row).random_raw())
        random.seed(word)
        np.random.seed(word % (1 << 32))
        if of_torch:
            of_torch.manual_seed(word)

    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if of_torch:
            of_torch.set_state(before[2])
