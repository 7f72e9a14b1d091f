"""Random numbers of rows: functions of seed, epoch and a row's number, the same with any ranks, batches and workers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random.bit_generator import ISeedSequence

OF_ROWS = 3
"""Second word of the seeds of rows; the order of an epoch has 1, the steps of learners have 2."""


class Draw(NamedTuple):
    """What the random numbers of a row depend on, besides its number."""

    seed: int
    epoch: int
    """Number of completed epochs."""


FIRST = Draw(0, 0)
"""Where rows are only looked at, before training."""


class _Key(ISeedSequence):
    """The key of Philox, as it is: a SeedSequence would hash it again for each row, which takes most of the time."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:
        return self._words


def row_generators(draw: Draw, rows: np.ndarray) -> list[np.random.Generator]:
    """A generator for each of these rows, int64 (n,).

    Seed and epoch are the key of Philox, and the row's number is the highest of the four words of its counter. So each
    row has a sequence of 2^192 blocks of its own, and making a generator takes about 2 microseconds.
    """
    key = _Key(np.random.SeedSequence([draw.seed, OF_ROWS, draw.epoch]).generate_state(2, np.uint64))
    counters = np.zeros((len(rows), 4), np.uint64)
    counters[:, 3] = rows
    # NumPy's types leave out that seeds may be of its abstract class.
    return [np.random.Generator(np.random.Philox(key, counter=one)) for one in counters]  # type: ignore[arg-type]
