"""Rows of iterable data sets, which have no numbers: row i of the stream is row i of the epoch.

Each rank iterates over all rows and takes its own, so that any number of ranks trains on the same global batches, and a
run that is resumed skips the rows that are done. All of that needs a stream that gives the same rows in each process.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from hvdtrain.datasets.formats.reading import DataChanged
from hvdtrain.datasets.row_random import FIRST, Draw, seeded_rows
from hvdtrain.datasets.rows import FINGERPRINT_ROWS, CheckedRows, RowChecks, Rows, digest_of, forms_of
from hvdtrain.errors import UserError

KEPT = 16
"""Rows that are kept at least, as they may be asked for again."""
OF_BATCHES = {"keras.Sequence", "tf_keras.Sequence", "keras.PyDataset"}
OF_BATCHES |= {"mxnet.DataIter", "mxnet.DataLoader", "torch.DataLoader"}
"""Packages and classes of data sets whose items are batches; of a torch.DataLoader without a batch_size, rows."""
COUNT = "give hvdtrain.Stream(dataset, rows=N), or the object an attribute rows or a method __len__"


class Stream:
    """An iterable data set with the number of its rows, for the `data()` of a task or the `batches()` of a loop.

    dataset: an object with `__iter__`, or a function that is called with the number of the epoch, from 0 on, and
    returns one. rows: of an epoch, at least 1; more rows are not read, so the data set may be endless.
    """

    def __init__(self, dataset: Iterable[Any] | Callable[[int], Iterable[Any]], rows: int) -> None:
        self.dataset, self.rows = dataset, rows


def is_stream(rows: Any) -> bool:
    """Whether it is an iterable data set: one without rows by number.

    PyTorch's and Hugging Face's `IterableDataset` may have a `__getitem__` that only raises an error.
    """
    if isinstance(rows, Stream) or any(base.__name__ == "IterableDataset" for base in type(rows).__mro__):
        return True
    return hasattr(rows, "__iter__") and not hasattr(rows, "__getitem__")


class StreamRows(CheckedRows):
    """The rows of an iterable data set; read them in their order, as going back begins a new iteration.

    Where it draws from the global generators of random numbers, these are seeded for each row. Raises UserError if the
    number of rows is not known, or the rows differ when they are read again.
    """

    is_code = is_stream = True
    kept = KEPT

    def __init__(self, name: str, rows: Any, skip: bool, checks: RowChecks) -> None:
        dataset = rows.dataset if isinstance(rows, Stream) else rows
        super().__init__(name, _count(name, rows), skip, checks)
        self._dataset, self._epoch, self._next = dataset, -1, 0
        self._iterator: Iterator[Any] = iter(())
        self._recent: OrderedDict[int, Any] = OrderedDict()
        self._seed: Callable[[int], None] = lambda row: None

    @functools.cached_property
    def fingerprint(self) -> str:
        first = np.arange(min(len(self), FINGERPRINT_ROWS))
        arrays = self.read(first, FIRST).arrays
        self._epoch = -1  # so that they are read again
        again = self.read(first, FIRST).arrays
        if any(array.tobytes() != repeated.tobytes() for array, repeated in zip(arrays, again, strict=True)):
            raise UserError(
                f"{self.name}: the stream gives other rows when it is read again",
                "let it depend on the epoch alone (set_epoch, or a function of the epoch), and seed its random numbers",
            )
        return digest_of(f"stream {len(self)}", forms_of(arrays), arrays)

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        draw = draw or FIRST
        if "forms" not in vars(self):
            with self.seeding(FIRST):
                self._begin(FIRST.epoch)
                _ = self.forms
        if draw.epoch != self._epoch:
            self._begin(draw.epoch)
        return super().read(rows, draw)

    @contextlib.contextmanager
    def seeding(self, draw: Draw | None) -> Iterator[Callable[[int], None]]:
        with seeded_rows(draw or FIRST) as self._seed:
            yield lambda row: None  # each row is seeded when its turn in the stream comes, also those of other ranks

    def read_row(self, row: int) -> Any:
        if row not in self._recent and row < self._next:
            self._begin(self._epoch)
        while self._next <= row:
            self._take()
        item = self._recent[row]
        if isinstance(item, Exception):
            raise item
        return item

    def _take(self) -> None:
        """Take the next row of the stream; an error stays with its row, which may be another rank's."""
        self._seed(self._next)
        try:
            item = next(self._iterator)
        except StopIteration:
            reason = f"{self.name}: the stream ended after {self._next} of {len(self)} rows"
            raise DataChanged(reason, "give the right number of rows, or repair the stream") from None
        except Exception as error:  # of the user's code
            item = error
        self._recent[self._next] = item
        self._next += 1
        if len(self._recent) > self.kept:
            self._recent.popitem(last=False)

    def _begin(self, epoch: int) -> None:
        """Begin an epoch. Raises UserError if the data set can be read only once, or gives batches."""
        self._recent.clear()
        made = of_epoch(self._dataset, epoch)
        check_no_batches(self.name, made)
        self._iterator, self._next, self._epoch = iter(made), 0, epoch
        if self._iterator is self._dataset:
            reason = f"{self.name}: {type(made).__name__} can be iterated over only once"
            raise UserError(reason, "give hvdtrain.Stream(function, rows=N) with a function that makes it")


def check_no_batches(name: str, dataset: Any) -> None:
    """Raise UserError for a data set that is known to give batches, such as a batched one of tf.data."""
    kinds = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(dataset).__mro__}
    if _is_batched(dataset) or (kinds & OF_BATCHES and getattr(dataset, "batch_size", 0) is not None):
        reason = f"{name}: the items of {type(dataset).__name__} are batches, and hvdtrain makes the batches itself"
        raise UserError(reason, "let each item be a row, by unbatch() in tf.data, or give arrays")


def _is_batched(dataset: Any) -> bool:
    """Whether it is a data set of tf.data after batch(), and not after unbatch()."""
    if not type(dataset).__module__.startswith("tensorflow."):
        return False
    name, inputs = type(dataset).__name__, getattr(dataset, "_inputs", None)
    if not callable(inputs) or re.search("Batch|Unbatch|FlatMap", name):
        return callable(inputs) and "Batch" in name
    return any(map(_is_batched, inputs()))


def of_epoch(dataset: Any, epoch: int) -> Any:
    """The data set, which is told the epoch, or what a function makes for it."""
    tell_epoch(dataset, epoch)
    return dataset(epoch) if callable(dataset) and not hasattr(dataset, "__iter__") else dataset


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Call set_epoch() of a data set; of one without it, as PyTorch's Subset, that of those which it wraps."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
        return
    several = getattr(dataset, "datasets", None)
    for inner in (getattr(dataset, "dataset", None), *(several if isinstance(several, list | tuple) else ())):
        if inner is not None:
            tell_epoch(inner, epoch)


def _count(name: str, rows: Any) -> int:
    """The number of rows. Raises UserError if it is not known."""
    count = getattr(rows, "rows", None)
    if count is None and hasattr(rows, "__len__"):
        with contextlib.suppress(TypeError, NotImplementedError):
            count = len(rows)
    if type(count) is not int or count < 1:
        given = "" if count is None else f" (rows: {count!r:.40})"
        raise UserError(f"{name}: how many rows {type(rows).__name__} has is not known{given}", COUNT)
    return count
