"""Columns of a table that have images: the names of their files, or the content of these."""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hvdtrain.datasets.formats.image_files import ImageRows
from hvdtrain.datasets.formats.reading import (
    DataFile,
    ImageSize,
    Malformed,
    check_unchanged,
    fingerprint,
    fingerprint_of,
)
from hvdtrain.datasets.validation import fingerprint_of_labels
from hvdtrain.system.text import printable

if TYPE_CHECKING:
    import pyarrow


class ImageColumn(ImageRows):
    """Images of a column, and their labels.

    file: the table. labels: int64 (n,). Others: see `ImageRows`.
    """

    labels: np.ndarray

    def __init__(
        self,
        name: str,
        file: DataFile,
        column: pyarrow.ChunkedArray,
        labels: np.ndarray,
        classes: int,
        skip: bool,
        resized: ImageSize,
    ) -> None:
        super().__init__(name, [len(labels)], classes, skip, resized)
        self.file, self.column, self.labels = file, column, labels
        self.labels_seen = np.unique(labels)

    @property
    def state(self) -> str:
        return self.file.state

    def where(self, row: int) -> str:
        return f"{self.file.path}"


class NamedImages(ImageColumn):
    """Files that a column names, relative to the folder of the table."""

    @functools.cached_property
    def _status(self) -> list[tuple[int, int]]:
        """Size in bytes and time of the last change of each file; of one that is not there, -1 and 0."""
        found = []
        for row in range(len(self)):
            try:
                status = os.stat(self._path(row))
                found.append((status.st_size, status.st_mtime_ns))
            except (OSError, ValueError):
                found.append((-1, 0))
        return found

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of all files and their labels, in the order of the rows, and of the size that they get."""
        names = [str(text) for text in self.column.to_pylist()]
        labels = fingerprint_of_labels(self.labels)
        return f"{fingerprint(self._path, names, [size for size, _ in self._status])} {labels} {self._resized}"

    def _path(self, row: int) -> Path:
        return self.file.path.parent / str(self.column[row].as_py())

    def where(self, row: int) -> str:
        return printable(str(self._path(row)))

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        with open(path := self._path(row), "rb") as file:
            check_unchanged(path, os.fstat(file.fileno()), *self._status[row])
            return self.decode(file), int(self.labels[row])


class StoredImages(ImageColumn):
    """The content of image files: bytes, or structures with a field `bytes`, as Hugging Face writes them."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the table's file, and of the size that images get."""
        return f"{fingerprint_of([self.file])} {fingerprint_of_labels(self.labels)} {self._resized}"

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        cell = self.column[row].as_py()
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if not content:
            raise Malformed("has no image")
        return self.decode(io.BytesIO(content)), int(self.labels[row])
