"""The rows of a user's task: changed by its `augment` whenever they are read, and labels of the default loss.

Each label must be the number of an output of the model, which not all frameworks check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtrain.datasets.row_random import FIRST, row_generators
from hvdtrain.datasets.rows import (
    MAX_FIRST,
    ArraySource,
    Forms,
    as_array,
    describe_forms,
    forms_of,
    replace_bad,
    wrong_count,
    wrong_types,
)
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Draw, Part, RowError, Rows, Source

PROBED = 4
"""Rows on which the method is tried out."""
Arrays = tuple[np.ndarray, ...]


class AugmentedRows(Source):
    """The rows of a source, changed by random numbers of their own (see `row_random`).

    task: its name. augment: called with arrays, a row each for n rows, and n generators; raises UserError if it fails.
    Without a draw, as in `source[rows]`, rows are those of `FIRST`. Raises UserError if it does not return arrays of n
    rows, or draws random numbers from elsewhere.
    """

    def __init__(self, task: str, source: Source, augment: Callable[[Arrays, list[np.random.Generator]], Any]) -> None:
        self._source, self._task, self._augment = source, task, augment
        self.in_memory, self.is_stream = source.in_memory, source.is_stream
        self.advice, self.weights = source.advice, source.weights
        # Python code holds the interpreter's lock, and need not be safe in threads.
        self.background = "processes" if self.in_memory else source.background
        self.form = self._try_out()

    def __len__(self) -> int:
        return len(self._source)

    @property
    def fingerprint(self) -> str:
        return self._source.fingerprint

    @property
    def unaugmented(self) -> Source:
        return self._source

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        draw = draw or FIRST
        original = self._source.read(rows, draw)
        arrays = self._apply(original.arrays, rows, draw)
        if forms_of(arrays) != self.form:
            problem = f"returned {describe_forms(forms_of(arrays))}, but {describe_forms(self.form)} for the first rows"
            raise self._error(problem, "return rows of the same shapes and types for all rows")
        return Rows(arrays, original.bad)

    def _apply(self, arrays: Arrays, rows: np.ndarray, draw: Draw) -> Arrays:
        """What the method returns for these rows, which it may change in place."""
        values = self._augment(tuple(map(np.array, arrays)), row_generators(draw, rows))
        values = values if isinstance(values, tuple | list) else (values,)
        augmented = tuple(map(as_array, values))
        if wrong := wrong_types(values, augmented) or wrong_count(augmented, len(rows)):
            raise self._error(f"returned {wrong}", "return a tuple of arrays of numbers, with as many rows as it gets")
        return tuple(map(np.ascontiguousarray, augmented))

    def _error(self, problem: str, remedy: str) -> UserError:
        return UserError(f"--model {self._task}: augment() {problem}", remedy)

    def _try_out(self) -> Forms:
        """The form of all rows, from the first ones that can be read; checks what their values depend on."""
        for first in range(0, min(len(self), MAX_FIRST), PROBED):
            rows = np.arange(first, min(first + PROBED, len(self)))
            first_rows = self._source.read(rows, FIRST)
            if len(first_rows.bad) < len(rows):
                break
        rows = np.delete(rows, list(first_rows.bad))
        arrays = tuple(np.delete(array, list(first_rows.bad), 0) for array in first_rows.arrays)
        once, again = (self._apply(arrays, rows, FIRST) for _ in range(2))
        if not _equal(once, again):
            raise self._error(
                "returned other values when it was called again for the same rows",
                "draw random numbers only from the generators that it gets, one for each row",
            )
        alone = self._apply(tuple(array[:1] for array in arrays), rows[:1], FIRST)
        if not _equal(alone, tuple(array[:1] for array in once)):
            problem = self._error(
                "gives a row values that depend on the other rows of its batch, and so on the number of ranks",
                "for row i, use generators[i] and row i only",
            )
            self.advice += (str(problem),)
        return forms_of(once)


def _equal(some: Arrays, other: Arrays) -> bool:
    """Whether arrays are equal, floats up to rounding."""
    return forms_of(some) == forms_of(other) and all(
        np.allclose(a, b, 1e-4, 1e-6, equal_nan=True) if a.dtype.kind == "f" else np.array_equal(a, b)
        for a, b in zip(some, other, strict=True)
    )


LABELED_ROWS = 4
"""Rows of a source whose labels are checked at once, at least as many as learners try a task out on."""
REMEDY = "correct the labels, or give the model an output for each class, from 0 on"
ADJECTIVES: dict[Part, str] = {"train": "training", "validation": "validation", "test": "test"}


class LabelCheck:
    """Checks labels once the number of classes is known; before, and for tasks with losses of their own, nothing.

    name: of the task in messages. position: of the labels among the arrays of a row. skip: whether rows with wrong
    labels are replaced (--on-bad-row).
    """

    def __init__(self, name: str, dataset: Dataset, position: int, skip: bool) -> None:
        self._name, self._dataset, self._position, self._skip = name, dataset, position, skip
        self.classes: int | None = None
        """Outputs of the model, once they are known."""
        self._spare: Arrays = ()
        """A training row with a good label."""

    def expect(self, classes: int | None) -> None:
        """The model has this many outputs, None if that is not known. Raises UserError for a label above them.

        It looks at all labels of arrays in memory, and at the first ones of other data, when it is first called; where
        rows are skipped, only for a good one.
        """
        if classes is None or classes == self.classes:
            return
        self.classes = classes
        if self._skip:
            self._spare = self._first_good(self._dataset.train)
            return
        for part, source in self._dataset.parts.items():
            if isinstance(source, ArraySource):
                labels = source.arrays[self._position]
            else:
                labels = source[np.arange(min(LABELED_ROWS, len(source)))][self._position]
            for row in self._wrong(labels)[:1]:
                raise UserError(self._problem(part, int(row), int(labels[row])), REMEDY)

    def _first_good(self, source: Source) -> Arrays:
        """The first training row with a good label. Raises UserError if there is none among the first ones."""
        rows = min(len(source), MAX_FIRST)
        for first in range(0, rows, LABELED_ROWS):
            arrays = source[np.arange(first, min(first + LABELED_ROWS, rows))]
            labels = arrays[self._position]
            wrong = self._wrong(labels).tolist()
            if good := [row for row in range(len(labels)) if row not in wrong]:
                return tuple(np.array(array[good[0]]) for array in arrays)
        raise UserError(f"{self._problem('train', rows - 1, int(labels[-1]))}, as those before it", REMEDY)

    def _wrong(self, labels: np.ndarray) -> np.ndarray:
        """Positions of labels that are not the number of a class."""
        return np.flatnonzero((labels < 0) | (labels >= (self.classes or 0)))

    def _problem(self, part: Part, row: int, label: int) -> str:
        return (
            f"--model {self._name}: the label of {ADJECTIVES[part]} row {row} is {label}, but the model has "
            f"{self.classes} outputs"
        )

    def __call__(self, part: Part, rows: np.ndarray, batch: Rows) -> Rows:
        """The rows of a batch; those with wrong labels are bad ones. Raises RowError unless they are skipped."""
        if self.classes is None:
            return batch
        labels = batch.arrays[self._position]
        bad = {
            int(position): RowError(self._problem(part, int(rows[position]), int(labels[position])), REMEDY)
            for position in self._wrong(labels)
            if position not in batch.bad
        }
        if bad and not self._skip:
            raise next(iter(bad.values()))
        if not bad:
            return batch
        arrays, all_bad = tuple(map(np.array, batch.arrays)), {**batch.bad, **bad}
        replace_bad(arrays, all_bad, lambda: self._spare)
        return Rows(arrays, all_bad)
