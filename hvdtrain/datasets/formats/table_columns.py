"""How the columns of a table become numbers: by statistics of the training rows, which a checkpoint keeps.

A column of numbers becomes one number, (x - shift) / scale. A date or a time becomes its days since 1970 in the same
way, with the sine and the cosine of 2 pi days / period for each period. A text becomes a number for each of the
categories, of which the one that it is is 1. Where a training row lacks a number or a date, another column says which
rows do, and they get `fill`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from hvdtrain.datasets.formats.reading import one_line
from hvdtrain.datasets.formats.table_files import CsvForm, TableFile
from hvdtrain.errors import UserError
from hvdtrain.system.text import printable

if TYPE_CHECKING:
    import pyarrow

Kind = Literal["number", "date", "category"]
Values = Any
"""Of a column: float64 (n,) with NaN for missing ones, or of categories pyarrow's array of texts, empty for missing."""
MAX_CATEGORIES = 1000
"""Of a column; the most frequent ones. The others are no category, as are texts that no training row has."""
MIN_NAMES = 20
"""A column of more different texts, for over half of the rows, has names or numbers of the rows."""
MICROSECONDS = 86_400e6
"""In a day."""
WEEK, YEAR, DAY = 7.0, 365.2425, 1.0
"""Periods of dates, in days."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, and how it becomes numbers."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    """The empty text is the one of rows without a value, if training rows lack it."""
    fill: float = 0.0
    """For rows without a value, the mean of the training rows, in the column's own unit."""
    has_gaps: bool = False
    """Whether training rows lack a value, so that a last number is 1 for rows that do, and else 0."""
    shift: float = 0.0
    scale: float = 1.0
    periods: tuple[float, ...] = ()
    """Of a date, in days."""

    @property
    def count(self) -> int:
        """How many numbers it becomes."""
        return len(self.categories) if self.kind == "category" else 1 + 2 * len(self.periods) + self.has_gaps

    def encode(self, values: Values) -> Iterator[np.ndarray]:
        """The numbers that these values become, float64 or bool (n,) each."""
        if self.kind == "category":
            import pyarrow
            import pyarrow.compute as compute

            among = compute.SetLookupOptions(pyarrow.array(self.categories, "string"))
            codes = compute.call_function("index_in", [values], among).fill_null(-1).to_numpy()
            yield from (codes == code for code in range(self.count))
            return
        gaps = np.isnan(values)
        yield (np.where(gaps, self.fill, values) - self.shift) / self.scale
        for period in self.periods:
            angles = 2 * math.pi * (values % period) / period
            yield from (np.where(gaps, 0, function(angles)) for function in (np.sin, np.cos))
        if self.has_gaps:
            yield gaps

    def scaled_by(self, values: Values) -> TableColumn:
        """It with the mean and the standard deviation of these values, NaN for missing ones; categories stay."""
        if self.kind == "category":
            return self
        mean, deviation = _statistics(values[~np.isnan(values)])
        return replace(self, shift=mean, scale=deviation or 1.0)


@dataclass(frozen=True)
class TableRecipe:
    """How rows of a table become the inputs of a network, in this order, and what its output stands for."""

    inputs: tuple[TableColumn, ...]
    label: TableColumn
    form: CsvForm | None = None
    """Of the training rows, in a CSV file."""

    def record(self) -> dict[str, Any]:
        """As JSON values, without those that are the default; `recorded_recipe` is the inverse."""
        return msgspec.json.decode(msgspec.json.encode(self))  # lists, as in a record that was read

    @property
    def is_plain(self) -> bool:
        """Whether all inputs are numbers as they are, unless they are scaled."""
        return all(column.kind == "number" and not column.has_gaps for column in self.inputs)

    def scaled_by(self, values: Mapping[str, Values], labels: np.ndarray) -> TableRecipe:
        """It with the mean and the standard deviation of training rows; labels of classes stay as they are."""
        inputs = tuple(column.scaled_by(values[column.name]) for column in self.inputs)
        return replace(self, inputs=inputs, label=self.label.scaled_by(labels.astype(np.float64)))

    def scaled_labels(self, labels: np.ndarray) -> np.ndarray:
        """Labels as a network learns them."""
        if self.label.kind == "category":
            return labels
        return ((labels.astype(np.float64) - self.label.shift) / self.label.scale).astype(np.float32)

    @property
    def kinds(self) -> dict[str, Kind]:
        """What the columns are read as."""
        return {column.name: column.kind for column in self.inputs}

    def encode(self, table: TableFile) -> np.ndarray:
        """The inputs of all rows, float32 (n, numbers). Raises UserError for a table without these columns."""
        table.require(*(column.name for column in self.inputs))
        return self.matrix([values_of(table, column.name, column.kind) for column in self.inputs])

    def matrix(self, columns: Sequence[Values]) -> np.ndarray:
        """The inputs, float32 (n, numbers), of the values of each column."""
        matrix = np.empty((len(columns[0]), sum(column.count for column in self.inputs)), np.float32)
        arrays = (array for column, values in zip(self.inputs, columns, strict=True) for array in column.encode(values))
        with np.errstate(over="ignore"):
            for position, array in enumerate(arrays):
                matrix[:, position] = array
        return matrix


def recorded_recipe(path: Path, record: Mapping[str, Any]) -> TableRecipe | None:
    """The recipe in the record of a network, of the checkpoint at `path`; None if it was not trained on a table.

    Raises UserError for a damaged one.
    """
    try:
        return msgspec.convert(record["table"], TableRecipe) if "table" in record else None
    except msgspec.ValidationError as error:
        reason = f"{path}: how it reads a table is damaged, or of another version ({error})"
        raise UserError(reason, "give another checkpoint") from None


def kind_of(kind: pyarrow.DataType) -> Kind | None:
    """What a column of this type holds; None for what does not become numbers."""
    import pyarrow.types as types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        return "number"
    if types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind):
        return "date"
    return "category" if str(kind) in ("string", "large_string", "string_view") else None


def values_of(table: TableFile, name: str, kind: Kind) -> Values:
    """The values of a column. Raises UserError for one that holds something else, or numbers beyond float32."""
    import pyarrow
    import pyarrow.compute as compute

    column = table.column(name)
    try:
        if kind == "category":
            return pyarrow.chunked_array([compute.fill_null(compute.cast(column, "string"), "")]).combine_chunks()
        if kind == "number":
            numbers = _floats(compute.cast(column, "double", safe=False))  # of large integers, rounded
            for row in np.flatnonzero(np.abs(numbers) > np.finfo(np.float32).max):
                reason = f"{table.path}: row {row} has no finite value in column {printable(name)}"
                raise UserError(reason, "correct it, or leave it empty")
            return numbers
        if kind_of(column.type) == "number":  # which a cast would take for microseconds
            raise pyarrow.ArrowTypeError("numbers have no unit of time")
        ticks = pyarrow.time64("us") if pyarrow.types.is_time(column.type) else pyarrow.timestamp("us")
        return _floats(compute.cast(compute.cast(column, ticks, safe=False), "int64")) / MICROSECONDS
    except pyarrow.ArrowException as error:
        reason = f"{table.path}: column {printable(name)} holds {column.type}, and no {kind}s ({one_line(error)})"
        raise UserError(reason, f"give {kind}s there, as in training") from None


def _floats(column: pyarrow.ChunkedArray) -> np.ndarray:
    return np.asarray(column.to_numpy(), np.float64)


def lacking(values: Values) -> np.ndarray:
    """Which values are missing, bool (n,)."""
    if isinstance(values, np.ndarray):
        return np.isnan(values)
    import pyarrow.compute as compute

    return compute.call_function("binary_length", [values]).to_numpy() == 0


def count_rows(values: Values) -> bool:
    """Whether these are numbers of rows, in any order: different integers, at least half of those that there may be."""
    if not isinstance(values, np.ndarray) or len(values) <= MIN_NAMES or (values % 1 != 0).any():
        return False
    return len(np.unique(values)) == len(values) and np.ptp(values) < 2 * len(values)


def are_names(different: int, rows: int) -> bool:
    """Whether so many different texts of so many rows are names or numbers of the rows."""
    return different > MIN_NAMES and rows < 2 * different


def fit(name: str, kind: Kind, values: Values, is_chosen: bool) -> TableColumn | None:
    """How a column with these values in the training rows becomes numbers, which are not scaled.

    None for texts that are names or numbers of the rows, unless the user has chosen the column.
    """
    if kind == "category":
        counts = {entry["values"].as_py(): entry["counts"].as_py() for entry in values.value_counts()}
        if not is_chosen and are_names(len(counts), len(values)):
            return None
        frequent = sorted(counts, key=lambda text: (-counts[text], text))[:MAX_CATEGORIES]
        return TableColumn(name, kind, tuple(sorted(frequent)))
    known = values[~np.isnan(values)]
    mean, _ = _statistics(known)
    is_date, has_gaps = kind == "date", len(known) < len(values)
    has_times, has_days = bool((known % 1).any()), bool((np.abs(known) >= 1).any())
    periods = [WEEK, YEAR] * (is_date and has_days) + [DAY] * (is_date and has_times)
    return TableColumn(name, kind, fill=mean, has_gaps=has_gaps, periods=tuple(periods))


def _statistics(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of float64 (n,), exactly rounded: ranks on all processors have the same."""
    if not len(values) or not np.isfinite(values).all():
        return 0.0, 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((values - mean) ** 2) / len(values))
