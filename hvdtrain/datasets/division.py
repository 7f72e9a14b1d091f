"""The parts of the data that a run makes itself, by --split: rows to train on, to test with and to validate with."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from hvdtrain.config.forms import Split
from hvdtrain.config.options import Config
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Draw, Rows, Source

STREAM = 3
"""Separates the random numbers of a division from others of the same seed."""


class Subset(Source):
    """Some rows of a source, under new numbers from 0 on. Messages have their numbers in the source."""

    def __init__(self, source: Source, rows: np.ndarray) -> None:
        """rows: their numbers in the source, int64 (n,)."""
        self._source, self._rows = source, rows
        self.background, self.advice = source.background, source.advice
        self.weights = None if source.weights is None else source.weights[rows]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        return f"{self._source.fingerprint} {hashlib.sha256(self._rows.astype('<i8').tobytes()).hexdigest()}"

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        return self._source.read(self._rows[rows], draw)

    def labels(self, position: int) -> np.ndarray | None:
        labels = self._source.labels(position)
        return None if labels is None else labels[self._rows]


class Division(NamedTuple):
    """How rows are divided."""

    split: float
    """See `Split.untested`."""
    validation: float
    seed: int

    @classmethod
    def by(cls, config: Config) -> Division:
        return cls(*Split.parse(config.split), config.seed)

    def of(
        self,
        name: str,
        train: Source,
        test: Source | None,
        labels: np.ndarray | None = None,
        labels_at: int = 1,
        validation: Source | None = None,
    ) -> tuple[Source, Source, Source | None]:
        """Training, test and validation rows, each in their order in the source; None for no validation rows.

        test, validation: None where the data has no such part. name: of the data in messages. labels: of `train`, where
        they are known; else see `Source.labels`. Raises UserError for parts that cannot be made or would have no row.
        """
        is_whole = test is not None
        problem, remedy = "", ""
        if (self.split or self.validation) and train.is_stream:
            problem = f"--split: {name} is a stream, whose rows cannot be chosen by number"
            remedy = "give the parts as streams of their own"
        elif self.split and is_whole:
            problem, remedy = f"--split: {name} has a test part", "give TRAIN/VALIDATION, such as 0.9/0.1"
        elif not self.split and not is_whole:
            problem, remedy = f"{name}: has no test part", "give --split 0.8/0.1/0.1, or 0.8 for no validation rows"
        if self.validation and validation is not None:
            problem = f"--split: {name} gives validation rows by itself"
            remedy = "leave it out, or give training and test rows only"
        if problem:
            raise UserError(problem, remedy, option="split")
        if test is None:
            if labels is None and isinstance(train, ArraySource) and train.arrays[-1].dtype.kind in "iu":
                labels = train.arrays[-1]
            train, test = self._parts(name, train, labels, self.split, round((1 - self.split) * len(train)))
        if not self.validation:
            return train, test, validation
        known = labels if is_whole and labels is not None else train.labels(labels_at)
        train, validated = self._parts(name, train, known, 1 - self.validation, round(self.validation * len(train)), 1)
        return train, test, validated

    def _parts(
        self, name: str, source: Source, labels: np.ndarray | None, share: float, kept: int, least: int = 0
    ) -> tuple[Source, Source]:
        """A share of a source's rows, and the others, of which about `kept` were asked for, by class."""
        count = len(source)
        if count < 2 or not least <= kept <= count - least:
            problem = f"--split: one of two parts of the {count} row(s) of {name} would be empty"
            raise UserError(problem, "give shares that leave rows in both parts, or more rows", option="split")
        # More labels than rows that are kept are numbers to predict: divided by these, each would get such a row.
        if labels is not None and (labels.ndim != 1 or len(np.unique(labels)) > kept):
            labels = None
        first, second = split_rows(labels, count, share, self.seed)
        return subset(source, first), subset(source, second)


UNDIVIDED = Division(0.0, 0.0, 0)


def split_rows(labels: np.ndarray | None, count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of about `share` of `count` rows, 2 or more, and those of the others: int64, each in order.

    labels: of the rows, integers (n,), each class of which is divided by itself (a stratified split); None to divide
    all rows at once. A class has at least one row in the first part, and if it has two or more also one in the second.
    The result depends on the arguments alone.
    """
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


def subset(source: Source, rows: np.ndarray) -> Source:
    """These rows of a source, int64 (n,); of arrays in memory they are copied."""
    if not isinstance(source, ArraySource):
        return Subset(source, rows)
    chosen = source.with_arrays(*source[rows])
    chosen.weights = None if source.weights is None else source.weights[rows]
    return chosen
