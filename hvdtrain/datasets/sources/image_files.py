"""Rows whose images are files, or members of archives; and a folder with a folder of images for each class."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from hvdtrain.datasets.formats.image import decode
from hvdtrain.datasets.formats.reading import wrap_errors
from hvdtrain.datasets.sources.files import READABLE, check_unchanged, fingerprint
from hvdtrain.datasets.sources.rows import Found, RowSource
from hvdtrain.errors import UserError
from hvdtrain.system.text import printable

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
TEST_FOLDERS = ("test", "val")

ImageSize = tuple[int | None, int, int] | None
"""What `Config.resized` returns."""


class ImageRows(RowSource):
    """Rows whose images are encoded, such as JPEG.

    resized: (channels, height, width) that all images get; without channels those of the first image, and without
    anything also its size.
    """

    other_shape = "give --image-size HEIGHTxWIDTH, or 1x... for gray and 3x... for color, which all images then get"

    def __init__(self, name: str, length: int, classes: int, skip: bool, resized: ImageSize) -> None:
        super().__init__(name, length, classes, skip)
        self._resized = resized
        self._in_color = False
        # Pillow warns of metadata that it does not need. This stays, as warnings.catch_warnings is not safe in threads.
        warnings.filterwarnings("ignore", module=r"PIL\.")

    def decode(self, file: BinaryIO) -> np.ndarray:
        """The image in a file, in the size that is wanted."""
        channels, *size = self._resized or (None,)
        image = decode(file, channels, (size[0], size[1]) if size else None)
        return np.repeat(image, 3, axis=0) if self._in_color and len(image) == 1 else image

    def take_colors_of_first(self, test: ImageRows) -> None:
        """Give gray images three channels, also in the test data, if the first image of these rows is in color."""
        self._in_color = test._in_color = self.form[0][0] == 3


class ClassFolder(NamedTuple):
    """The images of a class. Arrays, as a million names and numbers take a tenth of the memory of a list."""

    path: bytes
    names: np.ndarray
    """File names in the order of their bytes: bytes (n,)."""
    sizes: np.ndarray
    """In bytes, int64 (n,); -1 for a link to a file that does not exist."""
    mtimes_ns: np.ndarray
    """Times of the last change, int64 (n,)."""
    ignored: int
    """Files whose names are not those of images."""


class ImageFolder(ImageRows):
    """Rows by class, in the order of the file names."""

    def __init__(self, name: str, folders: list[ClassFolder], skip: bool, resized: ImageSize) -> None:
        counts = [len(folder.names) for folder in folders]
        super().__init__(name, sum(counts), len(folders), skip, resized)
        self._folders, self._begins = folders, np.cumsum([0, *counts])
        self.labels_seen = np.flatnonzero(counts)
        ignored = sum(folder.ignored for folder in folders)
        if ignored:
            self.advice = (
                f"{name}: {ignored} file(s) are ignored, whose names end with none of {', '.join(SUFFIXES)}",
            )

    def _find(self, row: int) -> tuple[int, int]:
        """Class and number of a row's image."""
        label = int(np.searchsorted(self._begins, row, side="right")) - 1
        return label, row - int(self._begins[label])

    def _path(self, label: int, number: int) -> bytes:
        folder = self._folders[label]
        return folder.path + b"/" + bytes(folder.names[number])

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of all files, by class and name; and of the size that they get."""
        folders = self._folders
        names = [os.path.basename(folder.path) + b"/" + one for folder in folders for one in folder.names.tolist()]
        sizes = np.concatenate([folder.sizes for folder in folders]).tolist()
        return f"{fingerprint(lambda row: self._path(*self._find(row)), names, sizes)} {self._resized}"

    def where(self, row: int) -> str:
        return printable(os.fsdecode(self._path(*self._find(row))))

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        label, number = self._find(row)
        path, folder = self._path(label, number), self._folders[label]
        with open(path, "rb") as file:
            check_unchanged(path, os.fstat(file.fileno()), int(folder.sizes[number]), int(folder.mtimes_ns[number]))
            return self.decode(file), label


def load_image_folder(name: str, folder: Path, skip: bool, resized: ImageSize) -> Found:
    """train/CLASS/*.png and test/CLASS/*.png, or val instead of test; labels number the sorted names of the classes.

    name: of the data in messages. skip, resized: see `RowSource` and `ImageRows`. Raises UserError if the parts do not
    have the same classes, or a class of train has no image.
    """
    test = next((folder / part for part in TEST_FOLDERS if (folder / part).is_dir()), None)
    if test is None:
        raise UserError(f"{folder}: has a folder train, but neither test nor val", "put images to test with there")
    classes, tested = _class_names(folder / "train"), _class_names(test)
    if not classes:
        raise UserError(f"{folder / 'train'}: has no folders", "give it a folder of images for each class")
    for one, has, lacks in ((tested, test, folder / "train"), (classes, folder / "train", test)):
        if missing := sorted(set(one) - set(tested if one is classes else classes)):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(
                f"{printable(str(lacks / missing[0]))}: no such folder{more}, but {has.name} has this class",
                "give both parts the same classes; a folder of test may be empty",
            )
    train_folders, test_folders = ([_scan(part / one) for one in classes] for part in (folder / "train", test))
    for found in train_folders:
        if not len(found.names):
            raise UserError(f"{printable(os.fsdecode(found.path))}: holds no image", "remove it, or add images")
    if not any(len(found.names) for found in test_folders):
        raise UserError(f"{test}: holds no image", "put images to test with there")
    train_rows = ImageFolder(f"{name}: train", train_folders, skip, resized)
    test_rows = ImageFolder(f"{name}: {test.name}", test_folders, skip, resized)
    train_rows.take_colors_of_first(test_rows)
    return Found(train_rows, test_rows, tuple(map(printable, classes)))


def _class_names(folder: Path) -> list[str]:
    with wrap_errors(folder, READABLE), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _scan(folder: Path) -> ClassFolder:
    """The images of a class folder, without hidden files. Raises UserError if it holds a folder."""
    path, found, ignored = os.fsencode(folder), [], 0
    suffixes = tuple(map(str.encode, SUFFIXES))
    with wrap_errors(folder, READABLE), os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                continue
            if entry.is_dir():
                inner = printable(os.fsdecode(entry.path))
                raise UserError(
                    f"{inner}: a folder in the folder of a class", "put all images directly into the latter"
                )
            if not entry.name.lower().endswith(suffixes):
                ignored += 1
                continue
            try:
                status = entry.stat()
                found.append((entry.name, status.st_size, status.st_mtime_ns))
            except OSError:  # a link to a file that does not exist: the row cannot be read
                found.append((entry.name, -1, 0))
    names = np.array([name for name, _, _ in found], bytes) if found else np.zeros(0, "S1")
    order = np.argsort(names, kind="stable")
    sizes, times = (np.array([one[part] for one in found], np.int64)[order] for part in (1, 2))
    return ClassFolder(path, names[order], sizes, times, ignored)
