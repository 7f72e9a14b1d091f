"""Labels and class names of data in files."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np

from hvdtrain.datasets.validation import MOST_CLASSES
from hvdtrain.errors import UserError

LABELS_AT_ONCE = 1 << 20
"""Labels that are read at a time."""


class Labels(Protocol):
    """Labels in a file or in memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, rows: slice) -> np.ndarray: ...


def compact_labels(where: str, labels: Labels, classes: int | None) -> np.ndarray:
    """Labels of any integer type in the smallest type that holds them, so that many fit into memory.

    where: names them in messages. Raises UserError, naming the first wrong row, if one is below 0 or not below
    `classes`, or MOST_CLASSES without it.
    """
    if len(labels.shape) != 1 or labels.dtype.kind not in "iu" or not labels.shape[0]:
        form = f"of type {labels.dtype} and shape {labels.shape}"
        raise UserError(f"{where}: the labels are {form}", "give integers of shape (n,), n at least 1")
    limit = classes or MOST_CLASSES
    found = np.empty(labels.shape[0], np.min_scalar_type(limit - 1))
    for first in range(0, len(found), LABELS_AT_ONCE):
        part = labels[first : first + LABELS_AT_ONCE]
        wrong = np.flatnonzero((part < 0) | (part >= limit))
        if len(wrong):
            allowed = f"the data has {classes} classes" if classes else f"there may be {MOST_CLASSES:,} classes"
            raise UserError(
                f"{where}: the label of row {first + wrong[0]} is {part[wrong[0]]}", f"{allowed}, from 0 on: correct it"
            )
        found[first : first + len(part)] = part
    return found.astype(np.min_scalar_type(int(found.max())), copy=False)


def fingerprint_of_labels(labels: np.ndarray) -> str:
    """SHA-256 of labels of any type, in hexadecimal digits."""
    digest = hashlib.sha256()
    for first in range(0, len(labels), LABELS_AT_ONCE):
        digest.update(labels[first : first + LABELS_AT_ONCE].astype("<i8").tobytes())
    return digest.hexdigest()


def names_or_numbers(where: str, names: tuple[str, ...], labels: np.ndarray) -> tuple[str, ...]:
    """The names of the classes, or, if there are none, the numbers from 0 to the largest label.

    Raises UserError for a name that is empty or occurs twice.
    """
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if not name.strip():
            raise UserError(f"{where}: the name of class {number} is empty", "give each class a name")
        if first.setdefault(name, number) != number:
            raise UserError(
                f"{where}: the class name {name!r} occurs twice, as class {first[name]} and {number}",
                "give each class a name of its own",
            )
    return names or tuple(map(str, range(int(labels.max()) + 1)))
