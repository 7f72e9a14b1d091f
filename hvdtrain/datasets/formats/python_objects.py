"""Data that the user's Python code makes: sources, PyTorch's data sets, and arrays; of FILE.py:NAME or of a task."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from hvdtrain.datasets.division import Division
from hvdtrain.datasets.formats.reading import Malformed, one_line
from hvdtrain.datasets.formats.tables import LABEL_NAMES, NO_COLUMNS, Columns, check_no_columns
from hvdtrain.datasets.row_random import Draw, seeded_rows
from hvdtrain.datasets.rows import (
    ArraySource,
    CheckedRows,
    ImagesAndLabels,
    LoadedSources,
    RowChecks,
    RowReader,
    Rows,
    as_array,
    describe_forms,
    forms_of,
    wrong_count,
    wrong_types,
)
from hvdtrain.datasets.streams import StreamRows, is_stream
from hvdtrain.datasets.validation import MAX_CLASSES, compact_labels, names_or_numbers, valid_images, valid_labels
from hvdtrain.datasets.weights import Weighted
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Source
from hvdtrain.system.python_files import load_object

FINGERPRINT_ROWS = 16
"""Rows that the fingerprint of data without one of its own looks at."""
PAIR = "return (train, test), or (train, test, classes)"
DEFAULT_SAMPLERS = ("SequentialSampler", "RandomSampler", "DistributedSampler", "_InfiniteConstantSampler")
"""Samplers of PyTorch that decide only the order of rows, which is hvdtrain's own."""


class PythonRows(CheckedRows):
    """The rows of an object with `__len__` and `__getitem__`.

    Read in processes that each make an object of their own: Python code holds the interpreter's lock, and need not
    be safe in threads. An object says otherwise by its attribute `background = "threads"`.
    """

    def __init__(self, name: str, rows: Any, skip: bool, checks: RowChecks) -> None:
        super().__init__(name, _length(name, rows), skip, checks)
        self._rows = rows
        self.background = str(getattr(rows, "background", "processes"))

    def is_of_user(self, error: Exception) -> bool:
        return not isinstance(error, Malformed)

    @functools.cached_property
    def fingerprint(self) -> str:
        """That of the object; if it has none, of its type, its length and a few rows.

        Where an array differs when it is read again, as with random augmentation, only its form counts.
        """
        given = getattr(self._rows, "fingerprint", None)
        if given is not None:
            return str(given() if callable(given) else given)
        rows = np.unique(np.linspace(0, len(self) - 1, FINGERPRINT_ROWS).astype(np.int64))
        arrays, again = (self.read(rows, Draw(0, epoch)).arrays for epoch in range(2))  # the same in every process
        kind = type(self._rows).__qualname__
        digest = hashlib.sha256(f"{kind} {len(self)} {describe_forms(forms_of(arrays))}".encode())
        for array, repeated in zip(arrays, again, strict=True):
            if np.array_equal(array, repeated):
                digest.update(array.tobytes())
        return digest.hexdigest()


class MapStyle(PythonRows):
    """An object that returns one row for its number, as PyTorch's map-style data sets do.

    The global generators of random numbers are seeded for each row, unless it is read in threads, which share them with
    training.
    """

    def read_row(self, row: int) -> Any:
        return self._rows[row]

    @functools.cached_property
    def labels(self) -> np.ndarray | None:
        """The attribute `targets`, as torchvision's data sets have it, if it has an integer for each row."""
        try:
            labels = as_array(getattr(self._rows, "targets", None))
        except Exception:  # of the user's code, or of lists in lists
            return None
        return labels if labels.dtype.kind in "iu" and labels.shape == (len(self),) else None

    def seeding(self, draw: Draw | None) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        return super().seeding(draw) if draw is None or self.background == "threads" else seeded_rows(draw)


class BatchedRows(PythonRows):
    """A `Source` of the user's, whose rows are checked."""

    def read_row(self, row: int) -> Any:
        return tuple(array[0] for array in self._read(np.array([row])))

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        """These rows at once; one by one where something is wrong with them."""
        try:
            return Rows(self.checks.batch(self.name, self._read(rows), self.forms))
        except Exception:  # of the user's code: reading one by one finds the row
            return super().read(rows, draw)

    def _read(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        batch = self._rows[rows]
        arrays = tuple(map(as_array, batch if isinstance(batch, tuple | list) else (batch,)))
        if wrong := wrong_count(arrays, len(rows)):
            raise Malformed(f"has {wrong}")
        return arrays


def parts_of(data: Any, with_validation: bool = False) -> Any:
    """Training and test rows of a dictionary of parts, such as Hugging Face's; other data as it is.

    with_validation: whether validation rows come between them, where the dictionary has all three.
    """
    if not isinstance(data, Mapping) or "train" not in data:
        return data
    if with_validation and {"validation", "test"} <= data.keys():
        return data["train"], data["validation"], data["test"]
    test = next((data[part] for part in ("test", "validation") if part in data), None)
    return data["train"] if test is None else (data["train"], test)


def rows_of_loader(name: str, rows: Any) -> Any:
    """The data set of PyTorch's DataLoader, as hvdtrain makes the batches itself; other rows as they are.

    name: of the data in messages. Raises UserError for one that chooses or joins rows in a way of its own.
    """
    if not (hasattr(rows, "dataset") and hasattr(rows, "batch_size") and hasattr(rows, "collate_fn")):
        return rows
    collate, sampler = getattr(rows.collate_fn, "__name__", "its collate_fn"), type(rows.sampler).__name__
    if collate not in ("default_collate", "default_convert"):
        reason = f"{name}: a DataLoader with {collate}, which hvdtrain does not call, as it makes the batches itself"
        raise UserError(reason, "let the data set return rows of one shape, and give loader.dataset")
    batches = type(getattr(rows, "batch_sampler", None)).__name__
    sampler = sampler if batches in ("BatchSampler", "NoneType") else batches
    if sampler not in DEFAULT_SAMPLERS:
        reason = f"{name}: a DataLoader with {sampler}, which decides the rows of an epoch"
        remedy = "of which each row is taken once in an epoch, or with --sample balanced as many rows of each class"
        raise UserError(reason, f"give loader.dataset, {remedy}")
    return rows.dataset


def load_python(name: str, reference: str, skip: bool, columns: Columns = NO_COLUMNS) -> LoadedSources:
    """The data that FILE.py:NAME holds or, if it is a function, returns: (train, test) or (train, test, classes).

    A part is a `Source`, an object with the length and the rows of PyTorch's map-style data sets, or a tuple of two
    NumPy arrays, images and labels, and a third one if rows have weights; or Weighted rows. classes: names, or their
    number; by default the attribute `classes` of the training data, or the largest of its attribute `targets` plus 1. A
    Hugging Face data set is one part, and a dictionary of them has two; columns: which of their columns are image and
    label. Raises UserError if it is none of these.
    """
    data = load_object(reference, name)
    if callable(data):
        try:
            data = data()
        except Exception as error:
            raise UserError(f"{name}: {type(error).__name__}: {one_line(error)}", "correct the function") from None
    data = rows_of_loader(name, parts_of(data))
    is_part = isinstance(data, Weighted) or (hasattr(data, "__getitem__") and not hasattr(data, "dtype"))
    if is_part and not isinstance(data, tuple | list):
        data = (data, None)
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise UserError(f"{name}: is of type {type(data).__name__}", PAIR)
    weighted = [Weighted.of(part, arrays=2) for part in data[:2]]
    parts = (part.rows if part else rows for part, rows in zip(weighted, data, strict=False))
    train, test = (_as_pairs(name, rows_of_loader(name, part), columns) for part in parts)
    names = _class_names(name, train, data[2] if len(data) == 3 else None)
    train_source = _source(f"{name}: train", train, len(names), skip, weighted[0])
    test_source = None if test is None else _source(f"{name}: test", test, len(names), skip, weighted[1])
    return LoadedSources(train_source, test_source, names)


class Pairs:
    """Rows of a data set whose rows are dictionaries, as pairs of image and label. targets: all labels, int64 (n,)."""

    def __init__(self, rows: Any, image: str, label: str) -> None:
        self._rows, self._image, self._label = rows, image, label
        names = getattr((getattr(rows, "features", None) or {}).get(label), "names", None)
        self.targets = np.asarray(rows[label])
        self.classes = tuple(map(str, names)) if names else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        found = self._rows[row]
        return found[self._image], found[self._label]


def _as_pairs(name: str, rows: Any, columns: Columns) -> Any:
    """A data set with named columns, as Hugging Face's, as pairs; other rows as they are. Raises UserError."""
    names = getattr(rows, "column_names", None)
    if not isinstance(names, list | tuple):
        if rows is not None:
            check_no_columns(name, columns)
        return rows
    labels = [columns.label] if columns.label else [column for column in names if column.lower() in LABEL_NAMES]
    images = list(columns.inputs) or [column for column in names if column not in labels]
    if (len(labels), len(images)) != (1, 1) or not {*labels, *images} <= {*names}:
        reason = f"{name}: which of its columns are image and label is not known ({', '.join(names)})"
        raise UserError(reason, "name them by --columns and --label")
    return Pairs(rows, images[0], labels[0])


def _source(name: str, part: Any, classes: int, skip: bool, weighted: Weighted | None = None) -> Source:
    if weighted:
        return weighted.attach(name, _source(name, part, classes, skip))
    if _is_arrays(part):
        images = valid_images(name, part[0])
        return ArraySource(images, valid_labels(name, part[1], len(images), classes))
    if _takes_row_numbers(part):
        return BatchedRows(name, part, skip, ImagesAndLabels(classes))
    return MapStyle(name, part, skip, ImagesAndLabels(classes))


def _is_arrays(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and all(isinstance(array, np.ndarray) for array in part)


def _takes_row_numbers(part: Any) -> bool:
    """Whether an object is a `Source`: it has a fingerprint, and returns arrays for an array of row numbers."""
    if not hasattr(part, "fingerprint"):
        return False
    try:
        arrays = tuple(map(as_array, part[np.zeros(1, np.int64)]))
    except Exception:  # of the user's code, which does not take an array
        return False
    return len(arrays) == 2 and all(array.ndim and len(array) == 1 for array in arrays)


def _class_names(name: str, train: Any, given: Any) -> tuple[str, ...]:
    """The names of the classes, or their numbers."""
    known = getattr(train, "classes", None) if given is None else given
    if known is None:
        targets = train[1] if _is_arrays(train) else getattr(train, "targets", None)
        with contextlib.suppress(ValueError):  # of lists in lists
            labels = as_array(targets)
            known = None if targets is None else int(compact_labels(name, labels, labels.size, None).max()) + 1
    if known is None or (isinstance(known, int) and not 0 < known <= MAX_CLASSES):
        problem = f"has {known} classes" if known is not None else "the number of classes is not known"
        raise UserError(f"{name}: {problem}", f"return (train, test, classes), with at most {MAX_CLASSES:,}")
    if isinstance(known, int):
        return tuple(map(str, range(known)))
    return names_or_numbers(name, tuple(map(str, known)), np.zeros(1, np.int64))


def _length(name: str, rows: Any) -> int:
    length = 0
    if hasattr(rows, "__getitem__"):
        with contextlib.suppress(TypeError):  # of an iterable data set of PyTorch's
            length = len(rows)
    if length < 1:
        reason = f"{name}: {type(rows).__name__} has no rows that have numbers"
        raise UserError(reason, "give it __len__, of at least 1, and __getitem__")
    return length


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
    one; or an iterable data set; or Weighted rows. skip: whether rows that cannot be read are replaced (--on-bad-row).
    Raises UserError if it is none of these.
    """
    if weighted := Weighted.of(rows):
        return weighted.attach(where, as_source(where, weighted.rows, skip))
    if isinstance(rows, ArraySource | RowReader | NoRows):  # from load_dataset
        return cast(Source, rows)
    rows = rows_of_loader(where, rows)
    if not isinstance(rows, tuple | list | Mapping | str) and not hasattr(rows, "__array__"):
        by_number = BatchedRows if hasattr(rows, "fingerprint") else MapStyle
        return (StreamRows if is_stream(rows) else by_number)(where, rows, skip, RowChecks())
    if not isinstance(rows, tuple | list):
        rows = (rows,)
    arrays = [np.asarray(as_array(array), order="C") for array in rows]
    wrong = wrong_types(rows, arrays) or ("a number" if not all(array.ndim for array in arrays) else "")
    if wrong:
        remedy = "return arrays of numbers of at most 64 bits, or an object that makes rows (docs/own.md)"
        raise UserError(f"{where} are {wrong}", remedy)
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
