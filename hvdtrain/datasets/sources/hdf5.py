"""HDF5 files with the data sets train/images, train/labels, test/images and test/labels."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtrain.datasets.formats.reading import Malformed, wrap_errors
from hvdtrain.datasets.sources.files import DataFile, FileArray, fingerprint_of
from hvdtrain.datasets.sources.npy_files import array_rows, fingerprint_of_labels
from hvdtrain.datasets.sources.rows import Found, RowSource, compact_labels, names_or_numbers

if TYPE_CHECKING:
    import h5py

SUFFIXES = (".h5", ".hdf5")
AGAIN = "write it again"
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
    with wrap_errors(path, AGAIN):
        file = h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE)
    classes: tuple[str, ...] = ()
    if "classes" in file:
        with wrap_errors(path, "give `classes` as strings, one for each class"):
            classes = tuple(file["classes"].asstr()[:].tolist())
    labels = []
    for part in ("train", "test"):
        where = f"{path}: {part}/labels"
        with wrap_errors(path, AGAIN):
            found = _dataset(file, f"{part}/labels")
            labels.append(compact_labels(where, found, len(classes) or None))
        classes = names_or_numbers(f"{path}: classes", classes, labels[0])
    train, test = (
        _rows(f"{name}: {part}", known, file, part, own, len(classes), skip)
        for part, own in zip(("train", "test"), labels, strict=True)
    )
    if not any(isinstance(one, ChunkRows) for one in (train, test)):
        file.close()
    return Found(train, test, classes)


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
    where = f"{known.path}: {part}/labels"
    with wrap_errors(known.path, AGAIN):
        images = _dataset(file, f"{part}/images")
        if images.dtype.kind not in "uif":
            raise Malformed(f"has {part}/images of type {images.dtype}; give uint8, or floats in [0, 1]")
        offset = images.id.get_offset()
        if images.chunks is None and offset is not None:  # in one piece, which needs no HDF5 to be read
            return array_rows(name, FileArray(known, offset, images.shape, images.dtype), labels, where, classes, skip)
        if len(images.shape) not in (3, 4) or len(images) != len(labels):
            raise Malformed(f"has {part}/images of shape {images.shape}, and {len(labels)} labels")
    return ChunkRows(name, known, images, labels, classes, skip)
