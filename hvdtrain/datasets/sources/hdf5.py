"""HDF5 files with the data sets train/images, train/labels, test/images and test/labels."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtrain.datasets.formats.reading import Malformed, wrap_errors
from hvdtrain.datasets.sources.files import DataFile, FileArray, fingerprint_of
from hvdtrain.datasets.sources.labels import compact_labels, fingerprint_of_labels, names_or_numbers
from hvdtrain.datasets.sources.npy_files import array_rows
from hvdtrain.datasets.sources.rows import Found, RowSource
from hvdtrain.datasets.validation import MOST_CLASSES

if TYPE_CHECKING:
    import h5py

SUFFIXES = (".h5", ".hdf5")
AGAIN = "write it again"
LARGEST_PIECE = 1 << 28
"""Bytes of a row, and of a chunk, which HDF5 decompresses as a whole."""
CHUNK_CACHE = 64 << 20
"""Bytes of decompressed chunks that HDF5 keeps for each data set, as one chunk may hold several rows."""


class ChunkRows(RowSource):
    """Images that HDF5 stores in chunks, which may be compressed, and labels in memory.

    Read in processes, as HDF5 reads and decompresses with Python's lock held.
    """

    background = "processes"

    def __init__(
        self, name: str, file: DataFile, images: h5py.Dataset, labels: np.ndarray, classes: int, skip: bool
    ) -> None:
        super().__init__(name, len(labels), classes, skip)
        self._file, self._images, self._labels = file, images, labels
        self.labels_seen = np.unique(labels)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the file, and of all labels."""
        return f"{fingerprint_of([self._file])} {fingerprint_of_labels(self._labels)}"

    @property
    def state(self) -> str:
        return self._file.state

    def where(self, row: int) -> str:
        return f"{self._file.path}: {self._images.name[1:]}"

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        self._file.check_unchanged(os.stat(self._file.path))
        return self._images[row], int(self._labels[row])


def load_hdf5(name: str, path: Path, skip: bool) -> Found:
    """The data in an HDF5 file, with the names of the classes in its data set `classes`, if it has one.

    name: of the data in messages. skip: see `RowSource`. Raises UserError if the file is not valid.
    """
    import h5py  # slow to import

    known = DataFile(path)
    with wrap_errors(path, AGAIN):  # HDF5 notices damage wherever it reads
        file = h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE)
        classes = _class_names(path, file)
        labels = []
        for part in ("train", "test"):
            images, found = _dataset(file, f"{part}/images"), _dataset(file, f"{part}/labels")
            _check_shapes(part, images, found)
            labels.append(compact_labels(f"{path}: {part}/labels", found, len(classes) or None))
            classes = names_or_numbers(f"{path}: classes", classes, labels[0])
        train, test = (
            _rows(f"{name}: {part}", known, file, part, own, len(classes), skip)
            for part, own in zip(("train", "test"), labels, strict=True)
        )
        if not any(isinstance(one, ChunkRows) for one in (train, test)):
            file.close()
    return Found(train, test, classes)


def _check_shapes(part: str, images: h5py.Dataset, labels: h5py.Dataset) -> None:
    """Raise Malformed for what no data has; a damaged file may ask for any amount of memory."""
    if images.dtype.kind not in "uif":
        raise Malformed(f"has {part}/images of type {images.dtype}; give uint8, or floats in [0, 1]")
    if len(images.shape) not in (3, 4) or labels.shape != images.shape[:1]:
        raise Malformed(f"has {part}/images of shape {images.shape}, and {part}/labels of shape {labels.shape}")
    for array in (images, labels):
        size = max(math.prod(array.shape[1:]), math.prod(array.chunks or (1,))) * array.dtype.itemsize
        if size > LARGEST_PIECE:
            raise Malformed(
                f"has a row or a chunk of {size:,} bytes in {array.name[1:]}; give less than {LARGEST_PIECE:,}"
            )


def _class_names(path: Path, file: h5py.File) -> tuple[str, ...]:
    """The strings in the data set `classes`; none if there is no such data set."""
    if "classes" not in file:
        return ()
    if len(file["classes"].shape) != 1 or len(file["classes"]) > MOST_CLASSES:
        raise Malformed(f"has classes of shape {file['classes'].shape}, and may have {MOST_CLASSES:,} of them")
    with wrap_errors(path, "give `classes` as strings, one for each class"):
        return tuple(file["classes"].asstr()[:].tolist())


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    import h5py

    found: Any = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise Malformed(f"holds no data set {name} (only {', '.join(file) or 'nothing'})")
    if found.is_virtual or found.external:
        raise Malformed(f"has {name} in another file; copy all data into one")
    return found


def _rows(
    name: str, known: DataFile, file: h5py.File, part: str, labels: np.ndarray, classes: int, skip: bool
) -> RowSource:
    images = _dataset(file, f"{part}/images")
    offset = images.id.get_offset()
    if images.chunks is None and offset is not None:  # in one piece, which needs no HDF5 to be read
        array = FileArray(known, offset, images.shape, images.dtype)
        return array_rows(name, array, labels, f"{known.path}: {part}/labels", classes, skip)
    return ChunkRows(name, known, images, labels, classes, skip)
