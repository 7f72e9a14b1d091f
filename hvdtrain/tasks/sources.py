"""The rows of a user's code as sources: arrays, and objects that make rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from hvdtrain.datasets.division import Division
from hvdtrain.datasets.formats.python_objects import BatchedRows, MapStyle, rows_of_loader
from hvdtrain.datasets.rows import ArraySource, RowChecks, RowReader, as_array, describe_types, has_numbers
from hvdtrain.datasets.streams import StreamRows, is_stream
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Source


def load_parts(
    name: str, train: Any, validation: Any, test: Any, skip: bool, division: Division, labels_at: int
) -> Dataset:
    """The data set of these rows (see `as_source`), from which a division makes the parts that it lacks.

    validation, test: None where there is no such part. labels_at: which array has the classes, if one has. Raises
    UserError for rows of another kind, and for parts that would be there twice.
    """
    if validation is not None and division.validation:
        remedy = "leave it out, or give training and test rows only"
        raise UserError(f"--split: {name} gives validation rows by itself", remedy, option="split")
    trained = as_source(f"{name}: the training rows", train, skip)
    tested = None if test is None else as_source(f"{name}: the test rows", test, skip)
    trained, tested, divided = division.of(name, trained, tested, labels_at=labels_at)
    validated = divided if validation is None else as_source(f"{name}: the validation rows", validation, skip)
    return Dataset(name, trained, tested, (), validated)


def as_source(where: str, rows: Any, skip: bool = False) -> Source:
    """A source of rows: arrays of equal length, or an object that makes rows.

    where: names the rows in messages. rows: arrays, or a tuple of them; or an object with `__len__` and `__getitem__`,
    which with an attribute `fingerprint` is a source, called with row numbers, else a map-style data set, called with
    one; or an iterable data set. skip: whether rows that cannot be read are replaced (--on-bad-row). Raises UserError
    if it is none of these.
    """
    if isinstance(rows, ArraySource | RowReader | NoRows):  # from load_dataset
        return cast(Source, rows)
    rows = rows_of_loader(where, rows)
    if not isinstance(rows, tuple | list | Mapping | str) and not hasattr(rows, "__array__") and is_stream(rows):
        return StreamRows(where, rows, skip, RowChecks())
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
