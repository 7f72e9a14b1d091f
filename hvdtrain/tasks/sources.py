"""The rows of a user's code as sources: arrays, and objects that make rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from hvdtrain.datasets.formats.python_objects import BatchedRows, MapStyle
from hvdtrain.datasets.holdout import HoldOut
from hvdtrain.datasets.rows import ArraySource, RowChecks, RowReader, as_array, describe_types, has_numbers
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset, Source


def load_parts(
    name: str, train: Any, validation: Any, test: Any, skip: bool, hold_out: HoldOut, labels_at: int
) -> Dataset:
    """The data set of these rows (see `as_source`), whose training rows the validation rows are taken from if need be.

    validation, test: None for none. labels_at: which array has the classes, if one has. Raises UserError for rows of
    another kind, or for validation rows with --validation.
    """
    if validation is not None and hold_out.share:
        remedy = "leave it out, or give training and test rows only"
        raise UserError(f"{name}: gives validation rows, and --validation takes them from training rows", remedy)
    trained = as_source(f"{name}: the training rows", train, skip)
    tested = NoRows() if test is None else as_source(f"{name}: the test rows", test, skip)
    validated = None if validation is None else as_source(f"{name}: the validation rows", validation, skip)
    if hold_out.share:
        trained, validated = hold_out.of(name, trained, labels_at)
    return Dataset(name, trained, tested, (), validated)


def as_source(where: str, rows: Any, skip: bool = False) -> Source:
    """A source of rows: arrays of equal length, or an object that makes rows.

    where: names the rows in messages. rows: arrays, or a tuple of them; or an object with `__len__` and `__getitem__`,
    which with an attribute `fingerprint` is a source, called with row numbers, else a map-style data set, called with
    one. skip: whether rows that cannot be read are replaced (--on-bad-row). Raises UserError if it is none of these.
    """
    if isinstance(rows, ArraySource | RowReader):  # from load_dataset
        return cast(Source, rows)
    if not isinstance(rows, tuple | list | Mapping | str) and not hasattr(rows, "__array__"):
        kind = BatchedRows if hasattr(rows, "fingerprint") else MapStyle
        return kind(where, rows, skip, RowChecks())
    if not isinstance(rows, tuple | list):
        rows = (rows,)
    arrays = [np.asarray(as_array(array), order="C") for array in rows]
    if not arrays or not all(has_numbers(array) and array.ndim for array in arrays):
        remedy = "return arrays of numbers of at most 64 bits, or an object that makes rows (docs/own.md)"
        raise UserError(f"{where} are {describe_types(rows, arrays) or 'nothing'}", remedy)
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1 or 0 in lengths:
        counts = ", ".join(map(str, sorted(lengths)))
        raise UserError(f"{where} have arrays of length {counts}", "return arrays of the same length, at least 1")
    return ArraySource(*(array if array.flags.writeable else array.copy() for array in arrays))


class NoRows:
    """The test rows of a script that evaluates nothing."""

    fingerprint = "no rows"

    def __len__(self) -> int:
        return 0

    def __getitem__(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        raise IndexError("there are no rows")
