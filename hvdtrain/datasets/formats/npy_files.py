"""NumPy's .npy files, read row by row: train-images.npy, train-labels.npy, test-images.npy and test-labels.npy."""

from __future__ import annotations

import functools
import os
from io import FileIO
from pathlib import Path

import numpy as np

from hvdtrain.datasets.formats.reading import (
    READABLE,
    Arrays,
    Malformed,
    check_unchanged,
    fingerprint,
    parts_beside,
    read_class_names,
    wrap_errors,
)
from hvdtrain.datasets.images_and_labels import ImagesAndLabels
from hvdtrain.datasets.rows import PARTS, BatchedRows, LoadedSources
from hvdtrain.datasets.validation import check_image_shape, compact_labels, fingerprint_of_labels, names_or_numbers
from hvdtrain.errors import UserError

NPY_FILES = tuple(f"{part}-{kind}.npy" for part in ("train", "test") for kind in ("images", "labels"))
SAVE_AGAIN = "save it again with numpy.save"


class NpyFile:
    """The array in an .npy file, as it was when training began: rows are read into memory when they are asked for.

    Rows are not mapped into memory: a file that is cut while it is mapped kills the process. Raises UserError if the
    file cannot be read, or is too short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with wrap_errors(path, READABLE):
            self._file = FileIO(path)  # unbuffered, for several threads, at offsets
            self._status = os.fstat(self._file.fileno())
        with wrap_errors(path, SAVE_AGAIN):
            mapped = np.lib.format.open_memmap(path, mode="r")
            if not mapped.flags.c_contiguous:
                raise Malformed("is in Fortran order, with no row in one piece; save numpy.ascontiguousarray of it")
            self.shape, self.dtype, self._offset = mapped.shape, mapped.dtype, mapped.offset
            self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def fingerprint(self) -> str:
        return fingerprint(lambda _: self.path, [self.path.name], [self._status.st_size])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """These rows, in their order; neighbors are read together. Raises Malformed, OSError, DataChanged."""
        now = os.fstat(self._file.fileno())
        check_unchanged(self.path, now, self._status.st_size, self._status.st_mtime_ns)
        array = np.empty((len(rows), *self.shape[1:]), self.dtype)
        view = array.reshape(-1).view(np.uint8).data
        begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=False):
            self._read_into(int(rows[begin]), view[begin * self._row_bytes : end * self._row_bytes])
        return array

    def _read_into(self, row: int, buffer: memoryview) -> None:
        offset = self._offset + row * self._row_bytes
        while len(buffer):
            count = os.preadv(self._file.fileno(), [buffer], offset)
            if not count:
                raise Malformed(f"is truncated: it ends at byte {offset}")
            offset, buffer = offset + count, buffer[count:]


class NpyRows(BatchedRows):
    """Images in a file, and their labels in memory."""

    known_labels: np.ndarray

    def __init__(self, name: str, images: NpyFile, labels: np.ndarray, classes: int, skip: bool) -> None:
        super().__init__(name, len(labels), skip, ImagesAndLabels(range(classes)))
        self._images, self.known_labels = images, labels

    @functools.cached_property
    def fingerprint(self) -> str:
        return f"{self._images.fingerprint} {fingerprint_of_labels(self.known_labels)}"

    def where(self, row: int) -> str:
        return str(self._images.path)

    def read_batch(self, rows: np.ndarray) -> Arrays:
        return self._images[rows], self.known_labels[rows]


def load_npy(name: str, folder: Path, skip: bool) -> LoadedSources:
    """The data in NPY_FILES in this folder, and validation rows beside them.

    The names of the classes are those in classes.txt if it is there.
    name: of the data in messages. skip: see `CheckedRows`. Raises UserError for a file that is missing or not valid.
    """
    classes, sources = read_class_names(folder), []
    names = {path.name.removesuffix("-images.npy") for path in folder.glob("*-images.npy")}
    for part in ("train", *(parts_beside(names, name) or ["test"])):
        files = [folder / f"{part}-{kind}.npy" for kind in ("images", "labels")]
        for file in files:
            if not file.exists():
                raise UserError(f"{file}: missing", f"put {', '.join(NPY_FILES)} into one folder")
        images, numbers = map(NpyFile, files)
        check_image_shape(f"{images.path}: the", images.shape)
        with wrap_errors(files[1], SAVE_AGAIN):
            labels = numbers[np.arange(len(numbers))]
        labels = compact_labels(str(files[1]), labels, len(images), len(classes) or None)
        if part == "train":
            classes = names_or_numbers(str(folder / "classes.txt"), classes, labels)
        sources.append(NpyRows(f"{name}: {part}", images, labels, len(classes), skip))
    return LoadedSources(dict(zip(PARTS, sources, strict=False)), classes)
