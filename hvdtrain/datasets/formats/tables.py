"""Tables of numbers and labels: CSV, TSV, Parquet, Arrow and Feather files, read by pyarrow."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hvdtrain.datasets.formats.reading import check_size, wrap_errors
from hvdtrain.datasets.rows import ArraySource, LoadedSources
from hvdtrain.datasets.validation import MAX_CLASSES
from hvdtrain.errors import UserError, needed_by
from hvdtrain.system.text import did_you_mean, printable

if TYPE_CHECKING:
    import pyarrow

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
LABEL_NAMES = ("label", "labels", "target", "class", "y")
"""Columns that are labels if --label names none, in any case."""
INDEX = re.compile(r"(Unnamed: 0(\.\d+)?)?|__index_level_\d+__")
"""Columns that pandas writes for the numbers of the rows, also several times, which are no input."""
MAX_NAMED = 5
"""Of the columns of a table, in a message."""
ARROW_FILES = (b"ARROW1", b"FEA1")
"""How files of Arrow and Feather begin; a stream of Arrow has no such mark."""


class Columns(NamedTuple):
    """Which columns of a table are used, as --label and --columns name them."""

    label: str = ""
    """Empty for the one that has one of LABEL_NAMES."""
    inputs: tuple[str, ...] = ()
    """Empty for all others that hold numbers."""


NO_COLUMNS = Columns()


def check_no_columns(name: str, columns: Columns) -> None:
    """Raise UserError for --label and --columns of data that has no columns."""
    if columns != NO_COLUMNS:
        option = "--label" if columns.label else "--columns"
        raise UserError(f"{option}: {name} has no columns", "leave it out")


def load_tables(name: str, paths: Sequence[Path], chosen: Columns, skip: bool) -> LoadedSources:
    """The rows of one table, or of two: training rows and test rows.

    name: of the data in messages. skip: leave out rows that lack a value. Numbers become float32 (n, columns), used as
    they are; a label that is a number with a fraction stays one, float32 (n,), and there are no classes then. Raises
    UserError for tables that cannot be read or do not have such columns.
    """
    tables = [_Table(path) for path in paths]
    label = tables[0].label(chosen)
    inputs = tables[0].inputs(chosen, label)
    for table in tables[1:]:
        table.require(label, *inputs)
    numbers = [table.numbers(inputs, label, skip) for table in tables]
    labels, classes = _labels(tables, label, [rows for _, rows in numbers])
    sources = []
    for table, (matrix, rows), numbered in zip(tables, numbers, labels, strict=True):
        source = ArraySource(matrix, numbered)
        source.advice = table.advice(inputs, label, len(rows), not chosen.inputs)
        sources.append(source)
    return LoadedSources(sources[0], sources[1] if len(sources) == 2 else None, classes)


class _Table:
    """A file, and its columns. Raises UserError if it cannot be read, or has no rows or a name twice."""

    def __init__(self, path: Path) -> None:
        self.path, self._table = path, read_table(path)
        names = self._table.column_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"{path}: two columns have the name {_shown(twice)}", "rename one, or add a header")
        if not len(self):
            raise UserError(f"{path}: has no rows below its header", "give it at least 1")

    def __len__(self) -> int:
        return self._table.num_rows

    def column(self, name: str) -> pyarrow.ChunkedArray:
        return self._table.column(name)

    def require(self, *names: str) -> None:
        for name in names:
            if name not in self._table.column_names:
                hint = did_you_mean(name, self._table.column_names)
                reason = f"{self.path}: has no column {printable(name)}{hint}"
                raise UserError(reason, f"its columns are {_shown(self._table.column_names)}")

    def label(self, chosen: Columns) -> str:
        if chosen.label:
            self.require(chosen.label)
            return chosen.label
        found = [name for name in self._table.column_names if name.lower() in LABEL_NAMES]
        if len(found) != 1:
            names = _shown(found or self._table.column_names)
            problem = f"several columns may be the label ({names})" if found else f"no column is called label ({names})"
            header = "add a header, with commas between the names (tabs in .tsv)"
            raise UserError(f"{self.path}: {problem}", f"name the column of labels by --label, or {header}")
        return found[0]

    def inputs(self, chosen: Columns, label: str) -> list[str]:
        """The columns that a model gets: those chosen, or all that hold numbers."""
        if chosen.inputs:
            self.require(*chosen.inputs)
            if label in chosen.inputs:
                raise UserError(f"--columns {label}: is the label", "leave it out there, or give another --label")
            return list(chosen.inputs)
        index = (self._table.schema.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in self._table.column_names if name not in (label, *index)]
        others = [name for name in names if not INDEX.fullmatch(name)]
        numeric = [name for name in others if _is_numeric(self.column(name).type)]
        if not numeric:
            kinds = ", ".join(f"{name}: {self.column(name).type}" for name in others[:MAX_NAMED]) or "there is no other"
            reason = f"{self.path}: no column besides {label} holds numbers ({kinds})"
            raise UserError(reason, "add one, or read images that a table has in a function of FILE.py:NAME")
        return numeric

    def numbers(self, inputs: list[str], label: str, skip: bool) -> tuple[np.ndarray, np.ndarray]:
        """The values of these columns, float32 (n, columns), and the numbers of the rows that have all of them."""
        import pyarrow.compute as compute

        matrix = np.empty((len(self), len(inputs)), np.float32)
        for position, name in enumerate(inputs):
            if not _is_numeric(kind := self.column(name).type):
                reason = f"{self.path}: column {printable(name)} holds {kind}, and no numbers"
                raise UserError(reason, "leave it out of --columns, or replace its values by numbers")
            values = compute.cast(self.column(name), "double", safe=False).to_numpy()  # of large integers, rounded
            with np.errstate(over="ignore"):
                matrix[:, position] = values
        bad = ~np.isfinite(matrix)
        no_label = np.array([not _has_value(cell) for cell in self.column(label).to_pylist()])
        is_bad = bad.any(1) | no_label
        if is_bad.any() and not skip:
            row = int(np.flatnonzero(is_bad)[0])
            column = label if no_label[row] else inputs[int(np.flatnonzero(bad[row])[0])]
            raise UserError(
                f"{self.path}: row {row} has no finite value in column {printable(column)}",
                "correct it, leave the column out by --columns, or use --on-bad-row skip",
            )
        rows = np.flatnonzero(~is_bad)
        if not len(rows):
            raise UserError(f"{self.path}: each row lacks a value", "leave such columns out by --columns")
        return np.ascontiguousarray(matrix[rows]), rows

    def advice(self, inputs: list[str], label: str, rows: int, is_default: bool) -> tuple[str, ...]:
        """What a user may not expect of the columns and rows that are used."""
        sentences = []
        ignored = [name for name in self._table.column_names if name not in (*inputs, label)]
        if ignored and is_default:
            sentences.append(f"{self.path}: ignores {_shown(ignored)}, no numbers or index; --columns chooses others")
        if rows < len(self):
            sentences.append(f"{self.path}: leaves out {len(self) - rows:,} of {len(self):,} rows, which lack a value")
        return tuple(sentences)


def _labels(tables: list[_Table], label: str, rows: list[np.ndarray]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The labels of these rows of each table, and the classes: the values that occur in the first, in their order.

    Numbers with fractions stay as they are, float32, and are no classes.
    """
    import pyarrow.types as types

    values = []
    for table, taken in zip(tables, rows, strict=True):
        column = table.column(label)
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        if not (_is_numeric(kind) or str(kind) in ("string", "large_string", "string_view")):
            raise UserError(f"{table.path}: the labels in column {label} are {kind}", "give texts or numbers")
        values.append(np.array(column.to_pylist(), object)[taken])
    if {type(cell) for cells in values for cell in cells} in ({float}, {float, int}):
        floats = [cells.astype(np.float64) for cells in values]
        if any((part != np.rint(part)).any() for part in floats):
            return [part.astype(np.float32) for part in floats], ()
        values = [part.astype(np.int64).astype(object) for part in floats]
    number_of = {value: number for number, value in enumerate(sorted(set(values[0])))}
    if len(number_of) > MAX_CLASSES:
        reason = f"{tables[0].path}: column {printable(label)} has {len(number_of):,} different labels"
        raise UserError(reason, f"there may be {MAX_CLASSES:,} classes: give another column, or numbers with fractions")
    for table, cells, taken in zip(tables, values, rows, strict=True):
        if new := [place for place, cell in enumerate(cells) if cell not in number_of]:
            row, text = taken[new[0]], printable(str(cells[new[0]]))
            reason = f"{table.path}: the label of row {row}, {text}, is not among those of training"
            raise UserError(reason, "correct it, or add training rows with it")
    numbers = [np.array([number_of[cell] for cell in cells], np.int64) for cells in values]
    return numbers, tuple(map(printable, map(str, number_of)))


def read_table(path: Path) -> pyarrow.Table:
    """The table in a file, by its suffix. Raises UserError if it is not one, or pyarrow is missing."""
    with needed_by(f"{path}: a table", "tables"):
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.ipc
        import pyarrow.parquet
    with wrap_errors(path, "write the table again, with a header and as UTF-8 if it is text", "read as a table"):
        if (suffix := path.suffix.lower()) == ".parquet":
            file = pyarrow.parquet.ParquetFile(path)
            check_size(sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)))
            return file.read()
        check_size(path.stat().st_size)
        if suffix in (".csv", ".tsv"):
            delimiter = "\t" if suffix == ".tsv" else ","
            parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            table = pyarrow.csv.read_csv(path, parse_options=parsing)
            return table.rename_columns([name.strip() for name in table.column_names])
        with open(path, "rb") as opened:
            if opened.read(len(ARROW_FILES[0])).startswith(ARROW_FILES):
                return pyarrow.feather.read_table(path, memory_map=False)
            opened.seek(0)
            return pyarrow.ipc.open_stream(opened).read_all()  # as Hugging Face's data sets are saved


def _has_value(cell: Any) -> bool:
    return cell not in (None, "") and not (isinstance(cell, float) and not math.isfinite(cell))


def _is_numeric(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)


def _shown(names: list[str]) -> str:
    return printable(", ".join(name or "(unnamed)" for name in names[:MAX_NAMED])) + ", ..." * (len(names) > MAX_NAMED)
