"""Labels of the default loss: each must be the number of an output of the model, which not all frameworks check."""

from __future__ import annotations

import numpy as np

from hvdtrain.datasets.arrays import ArraySource
from hvdtrain.datasets.reader import Part
from hvdtrain.datasets.sources.rows import RowError, Rows
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset, Source

FIRST_ROWS = 4
"""Rows of a source that are checked before training, at least as many as learners try a task out on."""
REMEDY = "correct the labels, or give the model an output for each class, from 0 on"
ADJECTIVES: dict[Part, str] = {"train": "training", "test": "test"}


class LabelCheck:
    """Checks labels once the number of classes is known; before, and for tasks with losses of their own, nothing.

    name: of the task in messages. position: of the labels among the arrays of a row. skip: whether rows with wrong
    labels are replaced (--on-bad-row).
    """

    def __init__(self, name: str, dataset: Dataset, position: int, skip: bool) -> None:
        self._name, self._dataset, self._position, self._skip = name, dataset, position, skip
        self._classes: int | None = None

    def expect(self, classes: int | None) -> None:
        """The model has this many outputs, None if that is not known. Raises UserError for a label above them.

        It looks at all labels of arrays in memory, and at the first ones of other data, when it is first called.
        """
        if classes is None or classes == self._classes:
            return
        self._classes = classes
        parts: dict[Part, Source] = {"train": self._dataset.train}
        if not self._skip:  # else a wrong row counts nothing, and learners try training rows out only
            parts["test"] = self._dataset.test
        for part, source in parts.items():
            if isinstance(source, ArraySource) and not self._skip:
                self._raise(part, np.arange(len(source)), source.arrays[self._position])
            else:
                rows = np.arange(min(FIRST_ROWS, len(source)))
                self._raise(part, rows, source[rows][self._position])

    def _raise(self, part: Part, rows: np.ndarray, labels: np.ndarray) -> None:
        for position in self._wrong(labels)[:1]:
            raise UserError(self._problem(part, int(rows[position]), int(labels[position])), REMEDY)

    def _wrong(self, labels: np.ndarray) -> np.ndarray:
        """Positions of labels that are no number of a class."""
        return np.flatnonzero((labels < 0) | (labels >= (self._classes or 0)))

    def _problem(self, part: Part, row: int, label: int) -> str:
        return (
            f"--model {self._name}: the label of {ADJECTIVES[part]} row {row} is {label}, but the model has "
            f"{self._classes} outputs"
        )

    def __call__(self, part: Part, rows: np.ndarray, found: Rows) -> Rows:
        """The rows of a batch; those with wrong labels are bad ones. Raises RowError unless they are skipped."""
        if self._classes is None:
            return found
        labels = found.arrays[self._position]
        bad = {
            int(position): RowError(self._problem(part, int(rows[position]), int(labels[position])), REMEDY)
            for position in self._wrong(labels)
            if position not in found.bad
        }
        if bad and not self._skip:
            raise next(iter(bad.values()))
        if bad:
            labels[list(bad)] = 0  # of weight 0, but losses are computed
        return Rows(found.arrays, {**found.bad, **bad})
