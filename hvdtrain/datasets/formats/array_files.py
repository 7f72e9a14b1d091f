"""Arrays in files, read row by row: NumPy's .npy files, and HDF5 files.

The former are train-images.npy, train-labels.npy, test-images.npy and test-labels.npy; an HDF5 file has the data sets
train/images, train/labels, test/images and test/labels.
"""

from __future__ import annotations

import abc
import functools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtrain.datasets.formats.reading import (
    DataFile,
    FileArray,
    Malformed,
    fingerprint_of,
    read_class_names,
    wrap_errors,
)
from hvdtrain.datasets.row_random import Draw
from hvdtrain.datasets.rows import LoadedSources, Rows, RowSource
from hvdtrain.datasets.validation import (
    MAX_CLASSES,
    check_image_shape,
    fingerprint_of_labels,
    labels_of_parts,
    valid_images,
)
from hvdtrain.errors import UserError

if TYPE_CHECKING:
    import h5py

PARTS = ("train", "test")
NPY_FILES = tuple(f"{part}-{kind}.npy" for part in PARTS for kind in ("images", "labels"))
HDF5_SUFFIXES = (".h5", ".hdf5")
LARGEST_PIECE = 1 << 28
"""Bytes of a row, and of a chunk, which HDF5 decompresses as a whole."""
CHUNK_CACHE = 64 << 20
"""Bytes of decompressed chunks that HDF5 keeps for each data set, as one chunk may hold several rows."""


class LabeledFile(RowSource):
    """Images in a file, and labels in memory."""

    labels: np.ndarray

    def __init__(self, name: str, file: DataFile, labels: np.ndarray, classes: int, skip: bool) -> None:
        super().__init__(name, len(labels), classes, skip)
        self._file, self.labels = file, labels
        self.labels_seen = np.unique(labels)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the file of images, and of all labels."""
        return f"{fingerprint_of([self._file])} {fingerprint_of_labels(self.labels)}"

    @property
    def state(self) -> str:
        return self._file.state

    def where(self, row: int) -> str:
        return str(self._file.path)

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        return self._read_image(row), int(self.labels[row])

    @abc.abstractmethod
    def _read_image(self, row: int) -> np.ndarray:
        """The image of a row. May raise any exception."""


class ArrayRows(LabeledFile):
    """Images in one piece of a file."""

    def __init__(self, name: str, images: FileArray, labels: np.ndarray, classes: int, skip: bool) -> None:
        super().__init__(name, images.file, labels, classes, skip)
        self._images = images

    def _read_image(self, row: int) -> np.ndarray:
        return self._images[np.array([row])][0]

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        """These rows at once; one by one where something is wrong with them."""
        shape, dtype = self.form
        try:
            images = valid_images(self.name, self._images[rows])
        except (UserError, Malformed, OSError):
            return super().read(rows, draw)
        assert images.shape[1:] == shape and images.dtype == dtype  # by the file's header
        return Rows((images, self.labels[rows].astype(np.int64)))


class ChunkRows(LabeledFile):
    """Images that HDF5 stores in chunks, which may be compressed.

    Read in processes, as HDF5 reads and decompresses with Python's lock held.
    """

    background = "processes"

    def __init__(
        self, name: str, file: DataFile, images: h5py.Dataset, labels: np.ndarray, classes: int, skip: bool
    ) -> None:
        super().__init__(name, file, labels, classes, skip)
        self._images = images

    def where(self, row: int) -> str:
        return f"{self._file.path}: {self._images.name[1:]}"

    def _read_image(self, row: int) -> np.ndarray:
        self._file.check_unchanged(os.stat(self._file.path))
        return self._images[row]


def _array_rows(
    name: str, images: FileArray, labels: np.ndarray, where_labels: str, classes: int, skip: bool
) -> ArrayRows:
    """The rows of an array in a file. Raises UserError if there is none, or there are not as many labels as images."""
    check_image_shape(f"{images.file.path}: the", images.shape)
    if len(labels) != len(images):
        raise UserError(
            f"{where_labels}: {len(labels)} labels for the {len(images)} images of {images.file.path}",
            "give each image one label",
        )
    return ArrayRows(name, images, labels, classes, skip)


def load_npy(name: str, folder: Path, skip: bool) -> LoadedSources:
    """The data in NPY_FILES in this folder, with the names of the classes in classes.txt if it is there.

    name: of the data in messages. skip: see `RowSource`. Raises UserError for a file that is missing or not valid.
    """
    for file in NPY_FILES:
        if not (folder / file).exists():
            raise UserError(f"{folder / file}: missing", f"put {', '.join(NPY_FILES)} into one folder")
    images = [open_npy(folder / file) for file in NPY_FILES[::2]]
    in_files = [(str(folder / file), open_npy(folder / file)) for file in NPY_FILES[1::2]]
    labels, classes = labels_of_parts(in_files, str(folder / "classes.txt"), read_class_names(folder))
    train, test = (
        _array_rows(f"{name}: {part}", images[i], labels[i], in_files[i][0], len(classes), skip)
        for i, part in enumerate(PARTS)
    )
    return LoadedSources(train, test, classes)


def open_npy(path: Path) -> FileArray:
    """The array in an .npy file, of which rows can be read. Raises UserError if the file is not valid."""
    file = DataFile(path)
    with wrap_errors(path, "save it again with numpy.save"), open(path, "rb") as header:
        version = np.lib.format.read_magic(header)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise Malformed(f"has version {version[0]}.{version[1]} of the format")
        shape, fortran_order, dtype = readers[version](header)
        if dtype.hasobject:
            raise Malformed("holds pickled objects, which are never loaded")
        if fortran_order and len(shape) > 1:
            raise Malformed(
                "is in Fortran order, in which a row is not in one piece; save numpy.ascontiguousarray of it"
            )
        return FileArray(file, header.tell(), shape, dtype)


def load_hdf5(name: str, path: Path, skip: bool) -> LoadedSources:
    """The data in an HDF5 file, with the names of the classes in its data set `classes`, if it has one.

    name: of the data in messages. skip: see `RowSource`. Raises UserError if the file is not valid.
    """
    import h5py  # slow to import

    known = DataFile(path)
    with wrap_errors(path, "write it again"):  # HDF5 notices damage wherever it reads
        file = h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE)
        names = _class_names(path, file)
        images = [_dataset(file, f"{part}/images") for part in PARTS]
        in_file = [(f"{path}: {part}/labels", _dataset(file, f"{part}/labels")) for part in PARTS]
        for part, of_part, (_, labels_of_part) in zip(PARTS, images, in_file, strict=True):
            _check_shapes(part, of_part, labels_of_part)
        labels, classes = labels_of_parts(in_file, f"{path}: classes", names)
        train, test = (
            _hdf5_rows(f"{name}: {part}", known, images[i], labels[i], in_file[i][0], len(classes), skip)
            for i, part in enumerate(PARTS)
        )
        if not any(isinstance(source, ChunkRows) for source in (train, test)):
            file.close()
    return LoadedSources(train, test, classes)


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
    if len(file["classes"].shape) != 1 or len(file["classes"]) > MAX_CLASSES:
        raise Malformed(f"has classes of shape {file['classes'].shape}, and may have {MAX_CLASSES:,} of them")
    with wrap_errors(path, "give `classes` as strings, one for each class"):
        return tuple(file["classes"].asstr()[:].tolist())


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    import h5py

    dataset: Any = file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        raise Malformed(f"holds no data set {name} (only {', '.join(file) or 'nothing'})")
    if dataset.is_virtual or dataset.external:
        raise Malformed(f"has {name} in another file; copy all data into one")
    return dataset


def _hdf5_rows(
    name: str, known: DataFile, images: h5py.Dataset, labels: np.ndarray, where_labels: str, classes: int, skip: bool
) -> RowSource:
    offset = images.id.get_offset()
    if images.chunks is None and offset is not None:  # in one piece, which needs no HDF5 to be read
        array = FileArray(known, offset, images.shape, images.dtype)
        return _array_rows(name, array, labels, where_labels, classes, skip)
    return ChunkRows(name, known, images, labels, classes, skip)
