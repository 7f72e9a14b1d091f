"""Dividing the rows of a source by seed and class: a share of them, and the others."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from hvdtrain.datasets.row_random import Draw
from hvdtrain.datasets.rows import ArraySource, RowReader, Rows, read_rows
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Source

STREAM = 3
"""Of the seed's random numbers, those that divide rows; 1 and 2 are of the order of rows and of models."""


class HoldOut(NamedTuple):
    """Which training rows are kept apart for validation (`--validation`)."""

    share: float
    """0 for none."""
    seed: int

    def of(self, name: str, source: Source, labels_at: int) -> tuple[Source, Source]:
        """The rows to train on, and those kept apart, each in their order in the source.

        name: of the data in messages. labels_at: see `labels_of`. Raises UserError if one of both would have no row.
        """
        rest, taken = split_rows(len(source), self.share, self.seed, labels_of(source, labels_at))
        if not len(rest) or not len(taken):
            problem = f"{name}: --validation {self.share:g} of {len(source)} training rows is {len(taken)}"
            raise UserError(problem, "give a share that leaves rows in both parts", option="validation")
        return rows_of(source, rest), rows_of(source, taken)


NOTHING = HoldOut(0.0, 0)


def split_rows(count: int, share: float, seed: int, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of rows, int64, ascending: those that are left, and a share of them, chosen at random.

    The share is round(share * count) rows. labels: integers (count,), of which each value then has its share up to a
    row; what is left over by rounding goes to those that lost most by it (the largest remainders).
    """
    order = np.random.Generator(np.random.PCG64([seed, STREAM])).permutation(count)
    total = round(share * count)
    groups = [order]
    if labels is not None:
        shuffled = labels[order]
        by_label = np.argsort(shuffled, kind="stable")
        groups = np.split(order[by_label], np.flatnonzero(np.diff(shuffled[by_label])) + 1)
    exact = np.array([share * len(group) for group in groups])
    counts = np.floor(exact).astype(np.int64)
    for number in np.argsort(counts - exact, kind="stable")[: total - counts.sum()]:
        counts[number] += 1
    taken = np.sort(np.concatenate([group[:number] for group, number in zip(groups, counts, strict=True)]))
    return np.setdiff1d(order, taken), taken


def labels_of(source: Source, position: int) -> np.ndarray | None:
    """The labels of all rows, integers (n,), where they are known without reading rows; else None.

    position: of the labels among the arrays of a row. A source in files has them as its attribute `labels`.
    """
    if isinstance(source, ArraySource):
        labels = source.arrays[position] if position < len(source.arrays) else None
    else:
        labels = getattr(source, "labels", None)
    is_known = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iub"
    return labels if is_known and labels is not None and len(labels) == len(source) else None


def rows_of(source: Source, rows: np.ndarray) -> Source:
    """These rows of a source, int64 (n,), as a source: in memory where it is."""
    return ArraySource(*source[rows]) if isinstance(source, ArraySource) else Subset(source, rows)


class Subset(RowReader):
    """Some rows of a source, read as the source reads them. rows: their numbers there, int64 (n,)."""

    def __init__(self, source: Source, rows: np.ndarray) -> None:
        self._source, self._rows = source, rows
        self.in_memory = getattr(source, "in_memory", False)
        self.background = getattr(source, "background", "threads")
        self.advice: tuple[str, ...] = getattr(source, "advice", ())
        labels = getattr(source, "labels", None)
        self.labels = labels[rows] if isinstance(labels, np.ndarray) else None
        self.labels_seen = getattr(source, "labels_seen", None) if self.labels is None else np.unique(self.labels)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """That of the source, and which rows they are."""
        numbers = hashlib.sha256(self._rows.astype("<i8").tobytes()).hexdigest()
        return f"{self._source.fingerprint} rows {numbers}"

    @property
    def state(self) -> str:
        """That of the source's files."""
        return getattr(self._source, "state", "")

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        return read_rows(self._source, self._rows[rows], draw)
