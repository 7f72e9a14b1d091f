"""Sources of rows: arrays in memory, and rows that are read when a step needs them, and are checked one by one."""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.datasets.formats.reading import Arrays, DataChanged, Malformed, one_line
from hvdtrain.datasets.validation import names_or_numbers, valid_images, valid_labels
from hvdtrain.errors import MissingPackage, UserError
from hvdtrain.interfaces.reading import Draw, RowError, Rows, Source
from hvdtrain.system.text import printable

MAX_ITEM_BYTES = np.dtype(np.float64).itemsize
MAX_FIRST = 1000
"""How many rows at the beginning of the data may be bad, with --on-bad-row skip."""
FINGERPRINT_ROWS = 16
"""Rows that the fingerprint of data without one of its own looks at."""
NOT_PIXELS = ("P", "PA", "CMYK")
"""Pillow's modes whose numbers are those of a palette, or of colors of ink."""
TYPES = (
    "return arrays of numbers of at most 64 bits, or an object that makes rows of these (docs/own.md); let data() turn "
    "texts into numbers, as by StringLookup or a tokenizer, and let model() begin after that"
)
FIX_OR_SKIP = "correct it, or use --on-bad-row skip"

Forms = tuple[tuple[tuple[int, ...], np.dtype], ...]
"""Shape of a row and type of each array."""


def forms_of(arrays: tuple[np.ndarray, ...]) -> Forms:
    return tuple((array.shape[1:], array.dtype) for array in arrays)


def describe_forms(forms: Forms) -> str:
    """Forms as text: `float32 (3,) and int64 ()`."""
    return " and ".join(f"{dtype} {shape}" for shape, dtype in forms) or "nothing"


def digest_of(title: str, forms: Forms, arrays: Sequence[np.ndarray]) -> str:
    """SHA-256 of rows that are made by code, of which a few are looked at, in hexadecimal digits."""
    digest = hashlib.sha256(f"{title} {describe_forms(forms)}".encode())
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def as_array(value: Any) -> np.ndarray:
    """A NumPy array of a number, an array, a tensor of a framework, or an image of Pillow's.

    It has the byte order of this machine, as tensors have. Raises Malformed for an image whose numbers are no pixels.
    """
    if (mode := getattr(value, "mode", "")) in NOT_PIXELS:
        raise Malformed(f"is an image of mode {mode}; give image.convert('RGB'), or read it by hvdtrain.read_image")
    for method in ("numpy", "asnumpy"):
        if hasattr(value, method):
            value = getattr(value, method)()
            break
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def wrong_types(values: Sequence[Any], arrays: Sequence[np.ndarray]) -> str:
    """What values are, such as `str, longdouble`, if one is of a type that tensors do not have; empty if none is."""
    if arrays and all(array.dtype.kind in "biufc" and array.dtype.itemsize <= MAX_ITEM_BYTES for array in arrays):
        return ""
    pairs = zip(values, arrays, strict=True)
    names = (array.dtype.name if isinstance(value, np.ndarray) else type(value).__name__ for value, array in pairs)
    return ", ".join(names) or "nothing"


def flat(values: Sequence[Any], rows: int = -1) -> list[Any]:
    """The arrays of a row, or arrays of so many rows, also those in a tuple or, of many, a list."""

    def is_group(value: Any) -> bool:
        if not isinstance(value, tuple if rows < 0 else tuple | list) or len(value) in (0, rows):
            return False
        shapes = [None if isinstance(item, np.generic) else getattr(item, "shape", None) for item in value]
        return all(shape is not None and (rows < 0 or tuple(shape)[:1] == (rows,)) for shape in shapes)

    return [array for value in values for array in (value if is_group(value) else (value,))]


def wrong_count(arrays: Sequence[np.ndarray], rows: int) -> str:
    """The shapes of arrays that are not of so many rows each; empty if they are."""
    if all(array.shape[:1] == (rows,) for array in arrays):
        return ""
    return f"arrays of shape {' and '.join(str(array.shape) for array in arrays)} for {rows} row(s)"


class ArraySource(Source):
    """Rows of arrays in memory, which are writable, contiguous and equally long."""

    in_memory = True

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def with_arrays(self, *arrays: np.ndarray) -> ArraySource:
        """These arrays, and all else that it has."""
        made = copy.copy(self)
        made.__dict__.pop("fingerprint", None)
        made.arrays = arrays
        return made

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        return Rows(tuple(array.take(rows, axis=0) for array in self.arrays))  # faster than array[rows]

    def labels(self, position: int) -> np.ndarray | None:
        labels = self.arrays[position] if position < len(self.arrays) else None
        return labels if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iub" else None

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over shapes, types and bytes of the arrays, in hexadecimal digits."""
        digest = hashlib.sha256()
        for array in self.arrays:
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.data)
        return digest.hexdigest()


def replace_bad(arrays: Arrays, bad: Collection[int], spare: Callable[[], Arrays]) -> None:
    """Write the first good row over each bad one. Its weight is 0, but 0 * NaN is NaN, which a model may make of zeros.

    bad: positions. spare: makes the arrays of a good row, for a batch that has none.
    """
    good = next((position for position in range(len(arrays[0])) if position not in bad), None)
    row = spare() if good is None else tuple(array[good] for array in arrays)
    for array, value in zip(arrays, row, strict=True):
        array[list(bad)] = value


class RowChecks:
    """What rows must be like: arrays of numbers, as tasks have them.

    `row` and `batch` raise Malformed or UserError for what they are not: RowError with its own remedy where the code
    that makes rows is wrong, and not one row.
    """

    arrays = 0
    """Of a row, after which rows in memory may have their weights; 0 where any number of arrays is a row."""
    of_float64 = "are float64, which most models do not take: .astype(np.float32) makes them float32"

    def __init__(self, classes: Sequence[Any] = (), columns: tuple[str, ...] = ()) -> None:
        """classes: names that labels may be. columns: keys of the rows to use, the label last; none for all."""
        self.columns, self._numbers = columns, {name: number for number, name in enumerate(classes)}
        self.classes = len(classes)
        self._keys: tuple[Any, ...] | None = columns or None

    def in_order(self, place: str, item: Any) -> Any:
        """A row; of a dictionary its values, in the order of the first row that is asked for.

        Raises RowError for a row that has other keys than that one.
        """
        keys = tuple(item) if isinstance(item, Mapping) else ()
        known = self._keys = keys if self._keys is None else self._keys
        if not (set(known) <= set(keys) if self.columns else set(known) == set(keys)):
            has, first = (printable(", ".join(map(str, one)) or "none") for one in (keys, known))
            problem = f"its keys are {has:.200}, and those of the first row {first:.200}"
            raise RowError(f"{place}: {problem}", "give all rows the same keys")
        return tuple(item[key] for key in known) if keys else item

    def numbered(self, labels: np.ndarray) -> np.ndarray | None:
        """Labels, of texts the numbers of the classes that they name; None if one names none."""
        if labels.dtype.kind != "U":
            return labels
        found = [self._numbers.get(label, -1) for label in labels.ravel().tolist()]
        return None if -1 in found else np.reshape(found, labels.shape)

    def in_memory(self, where: str, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """All rows, as arrays of equal length, checked."""
        return arrays

    def row(self, place: str, item: Any) -> tuple[np.ndarray, ...]:
        """The arrays of a row, checked. place: names it in messages. item: in any form that stands for them."""
        values = flat(item if isinstance(item, tuple | list) else (item,))
        arrays = tuple(map(as_array, values))
        if wrong := wrong_types(values, arrays):
            raise RowError(f"{place}: is {wrong}", TYPES)
        return arrays

    def batch(self, name: str, arrays: tuple[np.ndarray, ...], forms: Forms) -> tuple[np.ndarray, ...]:
        """The arrays of several rows, checked. forms: of the first row."""
        if forms_of(arrays) != forms:
            raise Malformed(f"are {describe_forms(forms_of(arrays))}, the first row is {describe_forms(forms)}")
        return tuple(map(np.ascontiguousarray, arrays))

    def difference(self, forms: Forms, first: Forms) -> str:
        """That a row is unlike the first, as the end of a sentence."""
        return f"is {describe_forms(forms)}, the first row is {describe_forms(first)}"


class CheckedRows(Source):
    """Rows that are read from files or made by the user's code, and checked one by one.

    name: of the data in messages, with its part. length: number of rows. skip: whether bad rows are replaced instead of
    raised (--on-bad-row). A subclass has `read_row`, `where` and `fingerprint`. Rows are read in several threads at a
    time.
    """

    other_shape = "give all rows the same shapes and types, or use --on-bad-row skip"
    """The remedy for a row that has another shape than the first."""
    is_code = False
    """Whether the user's code makes the rows, who needs the type of an error and its traceback."""
    known_labels: np.ndarray | None = None

    def __init__(self, name: str, length: int, skip: bool, checks: RowChecks) -> None:
        self.name, self.skip, self.checks = name, skip, checks
        self._length = length

    def __len__(self) -> int:
        return self._length

    def labels(self, position: int) -> np.ndarray | None:
        return self.known_labels

    @abc.abstractmethod
    def read_row(self, row: int) -> Any:
        """A row, in any form that the checks take. May raise any exception."""

    def where(self, row: int) -> str:
        """The file, or the member of a file, that holds a row."""
        return self.name

    @functools.cached_property
    def forms(self) -> Forms:
        return _forms_of_row(self._first_readable(self._valid_row))

    def _first_readable(self, read: Callable[[int], Arrays]) -> Arrays:
        """The arrays of the first row that `read` can read now: a file may come and go."""
        first: RowError | None = None
        count = min(len(self), MAX_FIRST)
        for row in range(count):
            try:
                return read(row)
            except RowError as error:
                if not self.skip:
                    raise
                first = first or error
        reason = first.reason if first else ""
        raise UserError(f"{self.name}: none of the first {count} rows can be read; {reason}", "correct the data")

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        arrays = tuple(np.zeros((len(rows), *shape), dtype) for shape, dtype in self.forms)
        bad: dict[int, RowError] = {}
        with self.seeding(draw) as seed_row:

            def read_like_first(row: int) -> Arrays:
                seed_row(row)
                return self._like_first(row, self._valid_row(row))

            for position, row in enumerate(rows.tolist()):
                try:
                    for array, value in zip(arrays, read_like_first(row), strict=True):
                        array[position] = value
                except RowError as error:
                    if not self.skip:
                        raise
                    bad[position] = error
            if bad:
                replace_bad(arrays, bad, functools.partial(self._first_readable, read_like_first))
        return Rows(arrays, bad)

    def seeding(self, draw: Draw | None) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """What is called with the number of each row before it is read, where reading may need random numbers."""
        return contextlib.nullcontext(lambda row: None)

    def _valid_row(self, row: int) -> tuple[np.ndarray, ...]:
        """The arrays of a row, checked by themselves. Raises RowError, DataChanged."""
        try:
            return self.checks.row(place := self._place(row), self.checks.in_order(place, self.read_row(row)))
        except (DataChanged, MissingPackage, RowError):
            raise
        except UserError as error:
            raise RowError(error.reason, error.remedy) from None
        except Exception as error:
            shows_cause = self.is_code and not isinstance(error, Malformed)
            kind = f"{type(error).__name__}: " if shows_cause and str(error) else ""
            reason = str(error) if isinstance(error, Malformed) else f"cannot be read ({kind}{one_line(error)})"
            raise RowError(f"{self._place(row)}: {reason}", FIX_OR_SKIP) from (error if shows_cause else None)

    def _like_first(self, row: int, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        if (forms := _forms_of_row(arrays)) != self.forms:
            raise RowError(f"{self._place(row)}: {self.checks.difference(forms, self.forms)}", self.other_shape)
        return arrays

    def _place(self, row: int) -> str:
        return f"{self.where(row)} (row {row})"


class BatchedRows(CheckedRows):
    """Rows that are read many at once, and one by one where something is wrong with them."""

    @abc.abstractmethod
    def read_batch(self, rows: np.ndarray) -> Arrays:
        """These rows, int64 (n,), as arrays that the checks take. May raise any exception."""

    def read_row(self, row: int) -> Any:
        return tuple(array[0] for array in self.read_batch(np.array([row])))

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        try:
            return Rows(self.checks.batch(self.name, self.read_batch(rows), self.forms))
        except Exception:  # of the user's code, or of a file: reading one by one finds the row
            return super().read(rows, draw)


def _forms_of_row(arrays: tuple[np.ndarray, ...]) -> Forms:
    return tuple((array.shape, array.dtype) for array in arrays)


PARTS = ("train", "test", "validation")
"""Of data in files, in this order, as far as they are there."""


class LoadedSources(NamedTuple):
    """Data in one of the formats."""

    parts: Mapping[str, Source]
    """By name; `train` alone for data that is not divided into parts."""
    classes: tuple[str, ...]
    encode: Callable[[Sequence[Source | None], bool], tuple[list[Any], dict[str, Any]]] | None = None
    """Of a table, whose rows become numbers when it is known which ones are training rows (`formats.tables`)."""

    @classmethod
    def of_arrays(cls, name: str, arrays: Arrays, classes: tuple[str, ...] = ()) -> LoadedSources:
        """Images and labels of each part in memory, which are all checked. classes: empty if they have no names."""
        sources = {}
        for part, images, labels in zip(PARTS, arrays[::2], arrays[1::2], strict=False):
            images = valid_images(f"{name}: {part}", images)
            labels = valid_labels(f"{name}: {part}", labels, len(images), len(classes) or None)
            classes = names_or_numbers(f"{name}: classes", classes, labels)
            sources[part] = ArraySource(images, labels)
        return cls(sources, classes)
