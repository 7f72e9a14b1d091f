"""NumPy's .npy files, read row by row: train-images.npy, train-labels.npy, test-images.npy and test-labels.npy."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from hvdtrain.datasets.formats.reading import Malformed, wrap_errors
from hvdtrain.datasets.row_random import Draw
from hvdtrain.datasets.sources.files import DataFile, FileArray, fingerprint_of, read_class_names
from hvdtrain.datasets.sources.labels import compact_labels, fingerprint_of_labels, names_or_numbers
from hvdtrain.datasets.sources.rows import Found, Rows, RowSource
from hvdtrain.datasets.validation import valid_images
from hvdtrain.errors import UserError

FILES = tuple(f"{part}-{kind}.npy" for part in ("train", "test") for kind in ("images", "labels"))
AGAIN = "save it again with numpy.save"


class ArrayRows(RowSource):
    """Images in one piece of a file, and labels in memory."""

    def __init__(self, name: str, images: FileArray, labels: np.ndarray, classes: int, skip: bool) -> None:
        super().__init__(name, len(images), classes, skip)
        self._images, self._labels = images, labels
        self.labels_seen = np.unique(labels)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the file of images, and of all labels."""
        return f"{fingerprint_of([self._images.file])} {fingerprint_of_labels(self._labels)}"

    @property
    def state(self) -> str:
        return self._images.file.state

    def where(self, row: int) -> str:
        return str(self._images.file.path)

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        return self._images[np.array([row])][0], int(self._labels[row])

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        """These rows at once; one by one where something is wrong with them."""
        shape, dtype = self.form
        try:
            images = valid_images(self.name, self._images[rows])
        except (UserError, Malformed, OSError):
            return super().read(rows, draw)
        assert images.shape[1:] == shape and images.dtype == dtype  # by the file's header
        return Rows((images, self._labels[rows].astype(np.int64)))


def array_rows(
    name: str, images: FileArray, labels: np.ndarray, where_labels: str, classes: int, skip: bool
) -> ArrayRows:
    """The rows of an array in a file. Raises UserError if there is none, or there are not as many labels as images."""
    if len(images.shape) not in (3, 4) or len(images) == 0:
        shape = "(n, height, width) or (n, channels, height, width)"
        raise UserError(f"{images.file.path}: the images have shape {images.shape}", f"give {shape}, n at least 1")
    if len(labels) != len(images):
        raise UserError(
            f"{where_labels}: {len(labels)} labels for the {len(images)} images of {images.file.path}",
            "give each image one label",
        )
    return ArrayRows(name, images, labels, classes, skip)


def load_npy(name: str, folder: Path, skip: bool) -> Found:
    """The data in FILES in this folder, with the names of the classes in classes.txt if it is there.

    name: of the data in messages. skip: see `RowSource`. Raises UserError for a file that is missing or not valid.
    """
    for file in FILES:
        if not (folder / file).exists():
            raise UserError(f"{folder / file}: missing", f"put {', '.join(FILES)} into one folder")
    images = [open_npy(folder / file) for file in FILES[::2]]
    paths = [folder / file for file in FILES[1::2]]
    known = read_class_names(folder)
    labels = [compact_labels(str(path), open_npy(path), len(known) or None) for path in paths]
    classes = names_or_numbers(str(folder / "classes.txt"), known, labels[0])
    compact_labels(str(paths[1]), labels[1], len(classes))
    train, test = (
        array_rows(f"{name}: {part}", own, own_labels, str(path), len(classes), skip)
        for part, own, own_labels, path in zip(("train", "test"), images, labels, paths, strict=True)
    )
    return Found(train, test, classes)


def open_npy(path: Path) -> FileArray:
    """The array in an .npy file, of which rows can be read. Raises UserError if the file is not valid."""
    file = DataFile(path)
    with wrap_errors(path, AGAIN), open(path, "rb") as header:
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
