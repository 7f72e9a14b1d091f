"""Data that the user's Python code makes: sources, PyTorch's data sets, and arrays; of FILE.py:NAME or of a task."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping, Set
from typing import Any, cast

import numpy as np

from hvdtrain.datasets.division import Division
from hvdtrain.datasets.formats.reading import Malformed, one_line, parts_beside
from hvdtrain.datasets.formats.tables import LABEL_NAMES, NO_COLUMNS, Columns, check_no_columns
from hvdtrain.datasets.images_and_labels import ImagesAndLabels
from hvdtrain.datasets.row_random import FIRST, seeded_rows
from hvdtrain.datasets.rows import (
    FINGERPRINT_ROWS,
    TYPES,
    ArraySource,
    BatchedRows,
    CheckedRows,
    LoadedSources,
    RowChecks,
    as_array,
    digest_of,
    flat,
    forms_of,
    wrong_count,
    wrong_types,
)
from hvdtrain.datasets.streams import Stream, StreamRows, check_no_batches, is_stream, of_epoch, tell_epoch
from hvdtrain.datasets.validation import MAX_CLASSES, compact_labels, names_or_numbers
from hvdtrain.datasets.weights import Weighted
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Draw, Rows, Source
from hvdtrain.system.python_files import load_object

PAIR = "return (train, test) or (train, validation, test), with the classes after them if they are not known"
DEFAULT_SAMPLERS = ("SequentialSampler", "RandomSampler", "DistributedSampler", "_InfiniteConstantSampler")
"""Samplers of PyTorch that decide only the order of rows, which is hvdtrain's own."""


class PythonRows(CheckedRows):
    """The rows of an object with `__len__` and `__getitem__`.

    Read in processes that each make an object of their own: Python code holds the interpreter's lock, and need not
    be safe in threads. An object says otherwise by its attribute `background = "threads"`.
    """

    is_code = True
    _latest: Callable[[], PythonRows | None] = staticmethod(lambda: None)
    """The object that was read last in this process."""

    def __init__(self, name: str, rows: Any, skip: bool, checks: RowChecks) -> None:
        super().__init__(name, _length(name, rows), skip, checks)
        self._rows, self._epoch = rows, -1
        self.background = str(getattr(rows, "background", "processes"))

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        epoch = (draw or FIRST).epoch
        if self._epoch != epoch or PythonRows._latest() is not self:  # as parts may share a data set
            tell_epoch(self._rows, epoch)
            self._epoch, PythonRows._latest = epoch, weakref.ref(self)
        return super().read(rows, draw)

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
        fixed = [array for array, repeated in zip(arrays, again, strict=True) if np.array_equal(array, repeated)]
        return digest_of(f"{type(self._rows).__qualname__} {len(self)}", forms_of(arrays), fixed)


class MapStyle(PythonRows):
    """An object that returns one row for its number, as PyTorch's map-style data sets do.

    The global generators of random numbers are seeded for each row, unless it is read in threads, which share them with
    training.
    """

    def read_row(self, row: int) -> Any:
        return self._rows[row]

    @functools.cached_property
    def known_labels(self) -> np.ndarray | None:  # type: ignore[override]
        labels = _targets(self._rows, len(self), self.checks.columns)
        return None if labels is None else self.checks.numbered(labels)

    def seeding(self, draw: Draw | None) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        return super().seeding(draw) if draw is None or self.background == "threads" else seeded_rows(draw)


class SourceRows(PythonRows, BatchedRows):
    """A `Source` of the user's, whose rows are checked."""

    def read_batch(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        arrays = _arrays_of(self._rows[rows])
        if wrong := wrong_count(arrays, len(rows)):
            raise Malformed(f"has {wrong}")
        return arrays


def parts_of(data: Any) -> Any:
    """Training and test rows of a dictionary of parts, such as Hugging Face's, or of a Dataset; other data as it is.

    Validation rows come between them, where there are all three.
    """
    data = data.parts if isinstance(data, Dataset) else data
    if not isinstance(data, Mapping) or "train" not in data:
        return data
    others = parts_beside(data.keys(), "the dictionary of parts")
    return tuple(data[part] for part in ("train", *reversed(others))) if others else data["train"]


def rows_of_loader(name: str, rows: Any) -> Any:
    """The data set of PyTorch's DataLoader, as hvdtrain makes the batches itself; other rows as they are.

    name: of the data in messages. Raises UserError for one that chooses or joins rows in a way of its own.
    """
    if not (hasattr(rows, "dataset") and hasattr(rows, "batch_size") and hasattr(rows, "collate_fn")):
        return rows
    batches, collate = getattr(rows, "batch_sampler", None), getattr(rows.collate_fn, "__name__", "its collate_fn")
    is_plain = type(batches).__name__ in ("BatchSampler", "NoneType")
    chosen: Any = getattr(batches, "sampler", rows.sampler) if is_plain else batches
    sampler = type(chosen).__name__
    if sampler in DEFAULT_SAMPLERS[:2] and len(chosen) != len(rows.dataset):
        sampler += f" of {len(chosen)} rows"
    for part, usual in ((collate, ("default_collate", "default_convert")), (sampler, DEFAULT_SAMPLERS)):
        if part not in usual:
            reason = f"{name}: a DataLoader with {part}, which hvdtrain does not call, as it makes the batches itself"
            remedy = "give loader.dataset, whose rows have one shape, with --sample balanced for equal classes"
            raise UserError(reason, remedy)
    return rows.dataset


def load_python(name: str, reference: str, skip: bool, columns: Columns = NO_COLUMNS) -> LoadedSources:
    """The data that FILE.py:NAME holds or, if it is a function, returns: parts as the data() of a task has them.

    That is (train, test) or (train, validation, test), with the classes after them if they are not known otherwise, or
    one part. classes: names, or their number; by default the attribute `classes` of the training data, or the largest
    of its labels plus 1 where these are in memory; none for labels with fractions. A part may have
    a third array, of weights. A Hugging Face data set is one part, and a dictionary of them has several; columns: which
    of their columns are image and label. Raises UserError if it is none of these.
    """
    data = load_object(reference, name)
    if callable(data):
        try:
            data = data()
        except Exception as error:
            raise UserError(f"{name}: {type(error).__name__}: {one_line(error)}", "correct the function") from None
    classes = data.classes if isinstance(data, Dataset) else data.get("classes") if isinstance(data, Mapping) else None
    data = rows_of_loader(name, parts_of(data))
    if all(map(_is_array, data)) if isinstance(data, tuple | list) else is_rows(data):  # one part
        data = (data, None)
    if isinstance(data, tuple | list) and len(data) > 2 and _are_classes(data[-1]):
        *data, classes = data
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise UserError(f"{name}: is of type {type(data).__name__}", PAIR)
    train = rows_of_loader(name, data[0].rows if isinstance(data[0], Weighted) else data[0])
    known = of_epoch(train.dataset, FIRST.epoch) if isinstance(train, Stream) else train
    pair = _image_and_label(name, known, columns)
    if pair and classes is None:
        classes = getattr((getattr(known, "features", None) or {}).get(pair[1]), "names", None)
    names = _class_names(name, train, classes, pair)
    titles = ("train", "validation", "test") if len(data) == 3 else ("train", "test")
    named = {f"{name}: {title}": part for title, part in zip(titles, data, strict=True)}
    sources = zip(titles, _sources(named, skip, ImagesAndLabels(names, pair)), strict=True)
    return LoadedSources({title: source for title, source in sources if source is not None}, names)


def _is_array(data: Any) -> bool:
    """Whether it is an array or a tensor; a Hugging Face data set has a shape as well."""
    return hasattr(data, "shape") and not hasattr(data, "column_names")


def is_rows(data: Any) -> bool:
    """Whether it makes rows, or is a sequence of them: dictionaries, or tuples that begin with an image or numbers."""
    if isinstance(data, tuple | list):
        return bool(data) and all(
            isinstance(row, Mapping) or (isinstance(row, tuple) and row and not np.isscalar(row[0])) for row in data
        )
    is_array = hasattr(data, "dtype") or isinstance(data, str | Mapping)
    return not is_array and (hasattr(data, "__getitem__") or isinstance(data, Weighted) or is_stream(data))


def _are_classes(value: Any) -> bool:
    """Whether it is a number of classes or their names, and not rows."""
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return all(isinstance(name, str | int | np.integer) for name in value)
    return value is None or getattr(value, "shape", None) == () or isinstance(value, int | range | Set | Mapping)


def _image_and_label(name: str, rows: Any, columns: Columns) -> tuple[str, ...]:
    """The columns with image and label of a data set that names its columns, as Hugging Face's; none of other data."""
    if not isinstance(getattr(rows, "column_names", ...), list | tuple | None):
        check_no_columns(name, columns)
        return ()
    check_no_columns(name, columns._replace(label="", inputs=()))
    names = rows.column_names or next(iter(rows), ())  # a stream may not know them
    labels = [columns.label] if columns.label else [column for column in names if column.lower() in LABEL_NAMES]
    images = list(columns.inputs) or [column for column in names if column not in labels]
    if (len(labels), len(images)) != (1, 1) or not {*labels, *images} <= {*names}:
        reason = f"{name}: which of its columns are image and label is not known ({', '.join(names)})"
        raise UserError(reason, "name them by --columns and --label")
    return images[0], labels[0]


def _takes_row_numbers(part: Any) -> bool:
    """Whether an object is a source: it has a fingerprint, and returns arrays for an array of row numbers."""
    if not hasattr(part, "fingerprint"):
        return False
    try:
        return all(array.ndim for array in _arrays_of(part[np.zeros(1, np.int64)]))
    except Exception:  # of the user's code, which does not take an array
        return False


def _arrays_of(batch: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(as_array, flat(batch if isinstance(batch, tuple | list) else (batch,))))


def _targets(rows: Any, count: int, columns: tuple[str, ...]) -> np.ndarray | None:
    """The attribute `targets`, as torchvision's data sets have it, if it has an integer for each row; or the column."""
    try:
        labels = as_array(rows[columns[-1]][:] if columns else getattr(rows, "targets", None))
    except Exception:  # of the user's code, or of lists in lists
        return None
    return labels if labels.dtype.kind in ("iuU" if columns else "iu") and labels.shape == (count,) else None


def _in_order(classes: Any) -> Any:
    """The names of classes by their numbers, or how many there are; None where there are none."""
    if getattr(classes, "shape", None) == ():
        return int(classes)
    if isinstance(classes, Set):  # whose order differs by process
        return sorted(classes, key=str) or None
    if isinstance(classes, Mapping):  # of numbers to names, or of names to numbers
        pairs = sorted(pair if isinstance(pair[0], int) else pair[::-1] for pair in classes.items())
        return [name for _, name in pairs] or None
    return classes if classes is None or isinstance(classes, int) or len(classes) else None


def _class_names(name: str, rows: Any, given: Any, pair: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the classes, or their numbers; none where labels are numbers to predict."""
    known = _in_order(getattr(rows, "classes", None) if given is None else given)
    if known is None:
        source = as_source(f"{name}: train", rows, checks=RowChecks(columns=pair))
        is_labeled = isinstance(source, ArraySource) and len(source.arrays) > 1
        labels = cast(ArraySource, source).arrays[1] if is_labeled else _targets(rows, len(source), pair)
        if labels is None and not source.is_stream:
            with contextlib.suppress(Exception):  # of the user's code
                labels = source[np.zeros(1, np.int64)][1]
        if labels is not None and labels.dtype.kind == "f":
            return ()
        if labels is not None and labels.dtype.kind == "U":
            known = sorted({*labels.tolist()})
        elif labels is not None and len(labels) == len(source):
            known = int(compact_labels(name, labels, len(source), None).max()) + 1
    if known is None or (isinstance(known, int) and not 0 < known <= MAX_CLASSES):
        problem = f"has {known} classes" if known is not None else "the number of classes is not known"
        remedy = f"return (train, test, classes), with at most {MAX_CLASSES:,}, or give integers as attribute targets"
        raise UserError(f"{name}: {problem}", remedy)
    if isinstance(known, int):
        return tuple(map(str, range(known)))
    return names_or_numbers(name, tuple(map(str, known)), np.zeros(1, np.int64))


def _length(name: str, rows: Any) -> int:
    length = 0
    check_no_batches(name, rows)
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
    parts = zip(("training", "validation", "test"), (train, validation, test), strict=True)
    named = {f"{name}: the {part} rows": rows for part, rows in parts}
    trained, validated, tested = _sources(named, skip, RowChecks())
    assert trained
    trained, tested, validated = division.of(name, trained, tested, labels_at=labels_at, validation=validated)
    return Dataset(name, trained, tested, (), validated)


def _sources(parts: Mapping[str, Any], skip: bool, checks: RowChecks) -> list[Source | None]:
    """The sources of parts by their names in messages, the training rows first; None for a part that is not there."""
    given = [(where, rows, rows is None and number > 0) for number, (where, rows) in enumerate(parts.items())]
    sources = [None if is_missing else as_source(where, rows, skip, checks) for where, rows, is_missing in given]
    if isinstance(sources[0], CheckedRows):
        _ = sources[0][np.zeros(1, np.int64)]  # rows that are dictionaries go by the keys of this one, in all parts
    return sources


def as_source(where: str, rows: Any, skip: bool = False, checks: RowChecks | None = None) -> Source:
    """A source of rows: arrays of equal length, or an object that makes rows.

    where: names the rows in messages. rows: arrays, or a tuple of them; or an object with `__len__` and `__getitem__`,
    which with an attribute `fingerprint` is a source, called with row numbers, else a map-style data set, called with
    one; or an iterable data set; or Weighted rows. skip: whether rows that cannot be read are replaced (--on-bad-row).
    Raises UserError if it is none of these.
    """
    checks = checks or RowChecks()
    if weighted := Weighted.of(rows, checks.arrays):
        return weighted.attach(where, as_source(where, weighted.rows, skip, checks))
    if isinstance(rows, Source):  # from load_dataset
        return rows
    if (inner := rows_of_loader(where, rows)) is not rows:
        source = as_source(where, inner, skip, checks)
        if rows.batch_size not in (None, 1):
            source.advice += (f"{where}: the DataLoader's batch_size {rows.batch_size} is not used: --batch-size is",)
        return source
    if is_rows(rows) or not (isinstance(rows, tuple | list | Mapping | str) or hasattr(rows, "__array__")):
        by_number = SourceRows if _takes_row_numbers(rows) else MapStyle
        return (StreamRows if is_stream(rows) else by_number)(where, rows, skip, checks)
    if not isinstance(rows, tuple | list):
        rows = (rows,)
    rows = flat(rows, len(rows[-1]) if hasattr(rows[-1], "__len__") else -1) if rows else rows
    arrays = [np.asarray(as_array(array), order="C") for array in rows]
    wrong = wrong_types(rows, arrays) or ("a number" if not all(array.ndim for array in arrays) else "")
    if wrong:
        raise UserError(f"{where} are {wrong}", TYPES)
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1 or 0 in lengths:
        counts = ", ".join(map(str, sorted(lengths)))
        raise UserError(f"{where} have arrays of length {counts}", "return arrays of the same length, at least 1")
    source = ArraySource(*(a if a.flags.writeable else a.copy() for a in checks.in_memory(where, tuple(arrays))))
    if arrays[0].dtype == np.float64:
        source.advice = (f"{where.rpartition(': ')[0]}: rows {checks.of_float64}",)
    return source
