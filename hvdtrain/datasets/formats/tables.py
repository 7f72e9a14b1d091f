"""Tables: rows of numbers, dates and texts, with a label in each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from hvdtrain.datasets.formats.table_columns import (
    Kind,
    TableColumn,
    TableRecipe,
    Values,
    are_names,
    count_rows,
    fit,
    kind_of,
    lacking,
    values_of,
)
from hvdtrain.datasets.formats.table_files import TableFile, example, shown
from hvdtrain.datasets.rows import PARTS, ArraySource, LoadedSources
from hvdtrain.datasets.validation import MAX_CLASSES
from hvdtrain.datasets.weights import valid_weights
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Source
from hvdtrain.system.text import printable

LABEL_NAMES = ("label", "labels", "target", "class", "y")
"""Columns that are labels if --label names none, in any case."""
PANDAS = re.compile(r"(Unnamed: 0(\.\d+)?)?|__index_level_\d+__")
"""Columns that pandas writes for the numbers of the rows, also several times, which are no input."""
INDEX = re.compile(r"(.*[ _-])?(id|idx|index|row|no|nr|num|number|#)", re.I)
"""Names of columns that may number the rows."""
MANY_LABELS, ROWS_OF_CLASS, LEAST_ROWS = 10, 20, 4
"""More different integers than this, of fewer rows on average, are numbers to predict, unless they count classes."""
MAX_PLAIN = 100
"""Numbers above this are told if they are not scaled: networks often do not learn from them."""
Target = Literal["auto", "classes", "regression"]
Scale = Literal["auto", "none", "standard"]


class Columns(NamedTuple):
    """Which columns of a table are used and what for, as the options of these names and --weight-column say."""

    label: str = ""
    """Empty for the one that has one of LABEL_NAMES."""
    inputs: tuple[str, ...] = ()
    """Empty for all others that hold numbers, dates or texts."""
    target: Target = "auto"
    scale: Scale = "auto"
    weight: str | None = None
    """Of the weights of rows."""


NO_COLUMNS = Columns()


def check_no_columns(name: str, columns: Columns) -> None:
    """Raise UserError for --label, --columns and the like of data that has no columns."""
    options = ("label", "columns", "target", "scale", "weight-column")
    for option, value, default in zip(options, columns, NO_COLUMNS, strict=True):
        if value != default:
            raise UserError(f"--{option}: {name} has no columns", "leave it out")


def load_tables(name: str, paths: Sequence[Path], chosen: Columns, skip: bool) -> LoadedSources:
    """The rows of one table, or of several: training rows, test rows and validation rows.

    name: of the data in messages. skip: leave out rows that lack a value. The first array of a row is its number, until
    `LoadedSources.encode` makes float32 (n, numbers) of it, as its training rows decide. A label to predict as a
    number is float64 (n,), then float32, and there are no classes. Raises UserError for tables that cannot be read or
    do not have such columns.
    """
    first = TableFile(paths[0])
    label = _label(first, chosen)
    if chosen.target != "regression":
        first.keep_zeros(label)
    inputs, kind = _inputs(first, chosen, label), _kind_of_label(first, label, chosen.target)
    kinds = {**inputs, label: kind} | ({chosen.weight: "number"} if chosen.weight else {})
    read = {**kinds, label: kind_of(first.column(label).type) or kind}  # a label of bool is not read as text
    others = [TableFile(path, read, first.form) for path in paths[1:]]
    parts = [_Part(table, label, kinds, skip) for table in (first, *others)]
    labels, classes = _labels(parts, label, chosen.target)
    sources: list[ArraySource] = []
    for part, numbered in zip(parts, labels, strict=True):
        start = sum(map(len, sources))
        sources.append(source := ArraySource(start + np.arange(len(part.rows)), numbered))
        source.advice = part.advice(not chosen.inputs)
        if chosen.weight:
            where = f"{part.table.path}: column {printable(chosen.weight)}"
            source.weights = valid_weights(where, part.values[chosen.weight], len(part.rows))
    encoder = _Encoder(parts, inputs, TableColumn(label, "category" if classes else "number"), chosen)
    return LoadedSources(dict(zip(PARTS, sources, strict=False)), classes, encoder.encode)


def _label(table: TableFile, chosen: Columns) -> str:
    if chosen.label:
        table.require(chosen.label)
        return chosen.label
    found = [name for name in table.names if name.lower() in LABEL_NAMES]
    if len(found) != 1:
        names = shown(found or table.names)
        problem = f"several columns may be the label ({names})" if found else f"no column is called label ({names})"
        remedy = "name the column of labels by --label, or add a header, with commas between the names (tabs in .tsv)"
        raise UserError(f"{table.path}: {problem}", remedy)
    return found[0]


def _inputs(table: TableFile, chosen: Columns, label: str) -> dict[str, Kind]:
    """The columns that a model gets, with what they hold: those chosen, or all that become numbers."""
    if chosen.inputs:
        table.require(*chosen.inputs)
        if label in chosen.inputs:
            raise UserError(f"--columns {label}: is the label", "leave it out there, or give another --label")
    no_inputs = (label, chosen.weight, *table.indices)
    names = [name for name in table.names if name not in no_inputs and not PANDAS.fullmatch(name)]
    kinds = {name: kind_of(table.column(name).type) for name in chosen.inputs or names}
    known = {name: kind for name, kind in kinds.items() if kind}
    if known and (len(known) == len(kinds) or not chosen.inputs):
        return known
    others = [f"{name}: {table.column(name).type}" for name in kinds if not kinds[name]]
    reason = f"no column besides {label} holds numbers, dates or texts ({shown(others) or 'there is no other'})"
    if chosen.inputs:
        reason = f"--columns names columns of other types than numbers, dates and texts ({shown(others)})"
    raise UserError(f"{table.path}: {reason}", "read images that a table has in a function of FILE.py:NAME")


def _kind_of_label(table: TableFile, label: str, target: Target) -> Kind:
    kind = table.column(label).type
    if (known := kind_of(kind)) not in ("number", "category"):
        raise UserError(f"{table.path}: the labels in column {label} are {kind}", "give texts or numbers")
    return "category" if str(kind) == "bool" and target != "regression" else known


class _Part:
    """A table, and the rows of it that are used. Raises UserError where a value is missing that must be there."""

    def __init__(self, table: TableFile, label: str, kinds: Mapping[str, Kind], skip: bool) -> None:
        table.require(*kinds)
        self.table, self.kinds = table, kinds
        self.notes = [f"{table.path}: {note}" for note in table.guesses]
        values = {name: values_of(table, name, kind) for name, kind in kinds.items()}
        gaps = {name: lacking(column) for name, column in values.items()}
        if gaps[label].any() and not skip:
            reason = f"{table.path}: row {np.argmax(gaps[label])} has no value in column {printable(label)}"
            raise UserError(reason, "correct it, or use --on-bad-row skip")
        self.rows = np.flatnonzero(~np.any([*gaps.values()] if skip else [gaps[label]], axis=0))
        """The numbers of those that are used."""
        if not len(self.rows):
            raise UserError(f"{table.path}: each row lacks a value", "leave such columns out by --columns")
        self.values = {name: column.take(self.rows) for name, column in values.items()}
        self._filled = [name for name, kind in kinds.items() if kind != "category" and gaps[name][self.rows].any()]

    def integers(self, name: str) -> np.ndarray:
        """The values of a column of integers, without the rounding of `values`; of one of other numbers, those."""
        if not str(self.table.column(name).type).startswith(("int", "uint")):
            return self.values[name].astype(np.int64)
        return np.array(self.table.column(name).take(self.rows).to_pylist(), object)

    def advice(self, is_default: bool) -> tuple[str, ...]:
        """What a user may not expect of the columns and rows that are used."""
        where, sentences = self.table.path, [*self.notes]
        ignored = [name for name in self.table.names if name not in self.kinds]
        if ignored and is_default:
            sentences.append(f"{where}: ignores {shown(ignored)}, no numbers or index; --columns chooses others")
        if len(self.rows) < len(self.table):
            count, of = len(self.table) - len(self.rows), len(self.table)
            sentences.append(f"{where}: leaves out {count:,} of {of:,} rows, which lack a value")
        if self._filled:
            sentences.append(
                f"{where}: fills missing values of {shown(self._filled)} with the mean of the training rows; "
                "--on-bad-row skip leaves such rows out"
            )
        return tuple(sentences)


class _Encoder:
    """Makes numbers of the rows of all parts. label: it, before it is scaled."""

    def __init__(self, parts: Sequence[_Part], kinds: Mapping[str, Kind], label: TableColumn, chosen: Columns) -> None:
        self._label, self._chosen, self._kinds, self._table = label, chosen, kinds, parts[0].table
        self._values = {name: _joined([part.values[name] for part in parts]) for name in self._kinds}

    def encode(self, sources: Sequence[Source | None], scales: bool) -> tuple[list[Any], dict[str, Any]]:
        """The sources with numbers in place of the rows' numbers, and the record of their `TableRecipe`.

        sources: the training rows first; None for a part that is not there. scales: what --scale auto does where a
        table has more than numbers and classes; such a table alone is used as it is.
        """
        train = cast(ArraySource, sources[0])
        known = {name: column.take(train.arrays[0]) for name, column in self._values.items()}
        inputs, advice = self._inputs(known)
        train.advice += tuple(advice)
        recipe = TableRecipe(tuple(inputs), self._label, self._table.form)
        if not recipe.inputs:
            raise UserError(train.advice[-1].partition(";")[0], "add columns of numbers, dates or categories")
        scale, is_plain = self._chosen.scale, self._label.kind == "category" and recipe.is_plain
        if scale == "standard" or (scale == "auto" and scales and not is_plain):
            recipe = recipe.scaled_by(known, train.arrays[1])
        plain = [column.name for column in recipe.inputs] if scale == "auto" and scales and is_plain else []
        if names := [name for name in plain if np.abs(known[name]).max() > MAX_PLAIN]:
            text = f"takes {shown(names)} with numbers above {MAX_PLAIN} as they are: give --scale standard"
            train.advice += (f"{text} if it does not learn, and --scale none if it is meant",)
        record = recipe.record() | {"read": self._meanings(recipe.inputs)}
        return [source and self._encoded(recipe, cast(ArraySource, source)) for source in sources], record

    def _meanings(self, inputs: Sequence[TableColumn]) -> dict[str, str]:
        """What each column was read as, for people."""
        label = "classes" if self._label.kind == "category" else "number to predict"
        meanings = dict.fromkeys(self._table.names, "ignored") | {column.name: column.kind for column in inputs}
        return meanings | {self._label.name: label} | ({self._chosen.weight: "weight"} if self._chosen.weight else {})

    def _inputs(self, known: Mapping[str, Values]) -> tuple[list[TableColumn], list[str]]:
        """The columns that a network gets, by their values in the training rows, and sentences about the others."""
        is_chosen, advice = bool(self._chosen.inputs), []
        fitted = {name: fit(name, self._kinds[name], values, is_chosen) for name, values in known.items()}
        if names := [name for name, column in fitted.items() if not column]:
            reason = f"ignores {shown(names)}, as over half of the rows have a text of their own there"
            texts = shown([example(self._values[name])[0] for name in names])
            advice.append(f"{reason}, such as {texts}; --columns chooses others")
        inputs = [column for column in fitted.values() if column]
        for name in (column.name for column in inputs if column.kind == "category"):
            text, seem_numbers = example(self._values[name])
            if seem_numbers:
                advice.append(
                    f"takes {shown([name])} as categories, of which most look like numbers or dates, but not {text}: "
                    "correct it if they are, and write dates as 2024-12-31 and numbers as 1234.5"
                )
        counting = [column.name for column in inputs if self._counts_rows(column, known[column.name])]
        if is_chosen or len(counting) in (0, len(inputs)):
            return inputs, advice
        advice.append(f"ignores {shown(counting)}, which counts the rows; name it in --columns to use it")
        return [column for column in inputs if column.name not in counting], advice

    def _counts_rows(self, column: TableColumn, known: Values) -> bool:
        """Whether a column is named as numbers of rows are, or is the first one from 0 or 1, and counts them."""
        values, is_first = self._values[column.name], column.name == self._table.names[0]
        if column.kind != "number" or not (INDEX.fullmatch(column.name) or (is_first and np.min(values) in (0, 1))):
            return False
        return count_rows(known) or count_rows(values)

    def _encoded(self, recipe: TableRecipe, source: ArraySource) -> ArraySource:
        rows, labels, *others = source.arrays
        matrix = recipe.matrix([self._values[column.name].take(rows) for column in recipe.inputs])
        return source.with_arrays(matrix, recipe.scaled_labels(labels), *others)


def _joined(columns: list[Values]) -> Values:
    """The values of the rows of all tables."""
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns)
    import pyarrow

    return pyarrow.concat_arrays(columns)


def _labels(parts: list[_Part], label: str, target: Target) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The labels of the rows of each table, and the classes: the values that occur in the first, in their order.

    Labels to predict as numbers are float64, and there are no classes then.
    """
    values = [part.values[label] for part in parts]
    if parts[0].kinds[label] == "number":
        if target == "regression" or (target == "auto" and _are_numbers(parts[0], label, values)):
            return values, ()
        if not any((numbers % 1).any() for numbers in values):
            values = [part.integers(label) for part in parts]
        return _classes(parts, label, values)
    if target == "regression":
        reason = f"--target regression: the labels in column {printable(label)} are not numbers"
        reason = f"{reason}, such as {example(values[0])[0]}"
        raise UserError(reason, "give --label a column of numbers")
    text, _ = example(values[0])
    values = [np.array(texts.to_pylist(), object) for texts in values]
    if target == "auto" and are_names(len(set(values[0])), len(values[0])):
        reason = f"{parts[0].table.path}: over half of the rows have a text of their own in column {printable(label)}"
        remedy = "give --label another column, write numbers as 1234.5, or take it with --target classes"
        raise UserError(f"{reason}, such as {text}", remedy)
    return _classes(parts, label, values)


def _are_numbers(part: _Part, label: str, numbers: list[np.ndarray]) -> bool:
    """Whether labels are numbers to predict: those with fractions, and many different integers for the rows."""
    if any((labels % 1).any() for labels in numbers):
        return True
    known, rows = np.unique(numbers[0], return_counts=True)
    if len(known) <= MANY_LABELS:
        return False
    count_classes = known[0] in (0, 1) and np.ptp(known) < len(known) and rows.min() >= max(LEAST_ROWS, rows.mean() / 2)
    is_many = rows.mean() < ROWS_OF_CLASS and not count_classes
    meaning, other = ("numbers to predict", "classes") if is_many else ("classes", "regression")
    part.notes.append(
        f"{part.table.path}: the {len(known):,} different integers of {printable(label)} are {meaning}; "
        f"--target {other} takes them for the other"
    )
    return is_many


def _classes(parts: list[_Part], label: str, values: list[np.ndarray]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    known = np.unique(values[0])
    if len(known) > MAX_CLASSES:
        reason = f"{parts[0].table.path}: column {printable(label)} has {len(known):,} different labels"
        raise UserError(reason, f"there may be {MAX_CLASSES:,} classes: give another column, or --target regression")
    numbers = [np.minimum(np.searchsorted(known, cells), len(known) - 1) for cells in values]
    for part, cells, found in zip(parts, values, numbers, strict=True):
        for place in np.flatnonzero(known[found] != cells):
            row, text = part.rows[place], printable(str(cells[place]))
            reason = f"{part.table.path}: the label of row {row}, {text}, is not among those of training"
            raise UserError(reason, "correct it, or add training rows with it; --target regression for numbers")
    return numbers, tuple(printable(str(value)) for value in known)
