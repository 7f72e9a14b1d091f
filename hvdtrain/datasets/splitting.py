"""Dividing rows: a part of them for training, the others to test or validate with."""

from __future__ import annotations

import hashlib

import numpy as np

from hvdtrain.datasets.row_random import Draw
from hvdtrain.datasets.rows import ArraySource, RowReader, Rows, read_rows
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Source

STREAM = 3
"""Separates these random numbers from others of the same seed."""


def split_rows(labels: np.ndarray | None, count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of about `share` of `count` rows, and those of the others: int64, each in order.

    labels: of the rows, integers (n,), each class of which is divided by itself (a stratified split); None to divide
    all rows at once. A class has at least one row in the first part, and if it has two or more also one in the second.
    The result depends on the arguments alone. Raises UserError for fewer than two rows.
    """
    if count < 2:
        raise UserError(f"{count} row(s) cannot be divided into two parts", "give more rows")
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM])))
    order = generator.permutation(count)
    classes = np.zeros(count, np.int64) if labels is None else np.asarray(labels)
    by_class = order[np.argsort(classes[order], kind="stable")]
    is_first = np.zeros(count, bool)
    for rows in np.split(by_class, np.flatnonzero(np.diff(classes[by_class])) + 1):
        taken = min(max(round(share * len(rows)), 1), max(len(rows) - 1, 1))
        is_first[rows[:taken]] = True
    if is_first.all():  # each class has one row
        is_first[order[min(max(round(share * count), 1), count - 1) :]] = False
    return np.flatnonzero(is_first), np.flatnonzero(~is_first)


def classes_of(labels: np.ndarray | None, kept: int) -> np.ndarray | None:
    """The labels (n,) by which `split_rows` divides, where `kept` rows are not to be trained on; None for all at once.

    More of them than rows that are kept are numbers to predict: divided by these, each would get such a row.
    """
    return None if labels is None or labels.ndim != 1 or len(np.unique(labels)) > kept else labels


class Subset(RowReader):
    """Some rows of a source, under new numbers from 0 on. Messages have their numbers in the source."""

    def __init__(self, source: Source, rows: np.ndarray) -> None:
        """rows: their numbers in the source, int64 (n,)."""
        self._source, self._rows = source, rows
        self.background: str = getattr(source, "background", "threads")
        self.advice: tuple[str, ...] = getattr(source, "advice", ())
        labels = getattr(source, "labels", None)
        self.labels = labels[rows] if isinstance(labels, np.ndarray) else None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """That of the source, and of the rows' numbers."""
        return f"{self._source.fingerprint} {hashlib.sha256(self._rows.astype('<i8').tobytes()).hexdigest()}"

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        return read_rows(self._source, self._rows[rows], draw)


def divide(
    name: str, train: Source, test: Source | None, labels: np.ndarray | None, split: float, seed: int
) -> tuple[Source, Source]:
    """Training and test rows: those that the data has, or with --split parts of all its rows.

    name: of the data in messages. labels: see `split_rows`. Raises UserError unless the data has two parts, or one and
    a `split`.
    """
    if test is not None:
        if split:
            raise UserError(
                f"--split: {name} has a test part", "leave it out, or give TRAIN/VALIDATION", option="split"
            )
        return train, test
    if not split:
        raise UserError(f"{name}: has no test part", "give --split 0.8/0.1/0.1, or 0.8 for no validation rows")
    if labels is None and isinstance(train, ArraySource) and train.arrays[-1].dtype.kind in "iu":
        labels = train.arrays[-1]
    labels = classes_of(labels, round((1 - split) * len(train)))
    first, second = split_rows(labels, len(train), split, seed)
    return subset(train, first), subset(train, second)


def subset(source: Source, rows: np.ndarray) -> Source:
    """These rows of a source, int64 (n,); of arrays in memory they are copied."""
    if not isinstance(source, ArraySource):
        return Subset(source, rows)
    copied = ArraySource(*source[rows])
    copied.advice, copied.are_pixels = source.advice, source.are_pixels
    return copied
