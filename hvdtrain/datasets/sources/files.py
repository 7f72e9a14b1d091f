"""Files of data: read at an offset by several threads, watched for changes, and known by a few blocks of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

import numpy as np

from hvdtrain.datasets.formats.reading import Malformed, wrap_errors
from hvdtrain.datasets.sources.rows import DataChanged
from hvdtrain.system.text import printable

BLOCK = 4096
"""Bytes of a file that are read at one place for a fingerprint."""
MOST_FILES, MOST_BLOCKS = 512, 1024
"""Files that a fingerprint looks into, and blocks that it reads of all of them together."""
CHANGED = "leave the data as it is while a job trains on it, and resume with that of the run"
READABLE = "check the path and its permissions"


def check_unchanged(path: str | bytes | Path, found: os.stat_result, size: int, mtime_ns: int) -> None:
    """Raise DataChanged unless a file has the size (bytes) and the time of its last change that it had at the start."""
    if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
        how = f"its size is {found.st_size} bytes, and was {size}" if found.st_size != size else "it was written again"
        raise DataChanged(f"{printable(os.fsdecode(path))} changed during training: {how}", CHANGED)


class DataFile:
    """A file of the data, as it was when training began. Raises UserError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with wrap_errors(path, READABLE), self.open() as file:
            found = os.fstat(file.fileno())
        self.size, self.mtime_ns = found.st_size, found.st_mtime_ns

    @property
    def state(self) -> str:
        """Name, size and time of the last change."""
        return f"{self.path.name} {self.size} {self.mtime_ns}"

    def open(self) -> FileIO:
        """Open it for reading by several threads, at offsets. Raises OSError."""
        return open(self.path, "rb", buffering=0)

    def check_unchanged(self, found: os.stat_result) -> None:
        """Raise DataChanged unless the file is as it was."""
        check_unchanged(self.path, found, self.size, self.mtime_ns)


def read_into(file: FileIO, offset: int, buffer: memoryview) -> None:
    """Fill the buffer with a file's bytes from this offset on. Raises Malformed if it ends before."""
    while len(buffer):
        count = os.preadv(file.fileno(), [buffer], offset)
        if not count:
            raise Malformed(f"is truncated: it ends at byte {offset}")
        offset, buffer = offset + count, buffer[count:]


def fingerprint_of(files: Sequence[DataFile]) -> str:
    """`fingerprint` of these files."""
    return fingerprint(lambda number: files[number].path, [file.path.name for file in files], [f.size for f in files])


class FileArray:
    """An array that is one piece of a file, in C order: rows are read into memory when they are asked for.

    It reads instead of mapping the file into memory: a file that is cut while it is mapped kills the process. Raises
    UserError if the file is too short.
    """

    def __init__(self, file: DataFile, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.file, self.shape, self.dtype = file, shape, dtype
        self._opened = file.open()
        self._offset = offset
        self._row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        end = offset + shape[0] * self._row_bytes
        with wrap_errors(file.path, "write it again"):
            if file.size < end:
                raise Malformed(f"is truncated: it holds {file.size} bytes, its header says {end}")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """These rows, in their order; neighbors are read together. Raises Malformed, OSError, DataChanged."""
        self.file.check_unchanged(os.fstat(self._opened.fileno()))
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        view = found.reshape(-1).view(np.uint8).data
        begins = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=True):
            part = view[begin * self._row_bytes : end * self._row_bytes]
            read_into(self._opened, self._offset + int(rows[begin]) * self._row_bytes, part)
        return found


def fingerprint(path: Callable[[int], str | bytes | Path], names: Sequence[str | bytes], sizes: Sequence[int]) -> str:
    """SHA-256 of names, sizes (bytes) and some of the content of files, in hexadecimal digits.

    path: of the file with a number.
    Reads at most MOST_BLOCKS blocks of BLOCK bytes, evenly spread over MOST_FILES files, which are evenly spread over
    all: seconds for any amount of data. Copies of the files have the same fingerprint. A file that cannot be read
    counts by its name and size.
    """
    digest = hashlib.sha256()
    for name, size in zip(names, sizes, strict=True):
        digest.update(b"%s\0%d\0" % (name if isinstance(name, bytes) else os.fsencode(name), size))
    chosen = np.unique(np.linspace(0, len(names) - 1, MOST_FILES).astype(np.int64)).tolist()
    for number in chosen:
        blocks = max(MOST_BLOCKS // len(chosen), 2)
        offsets = np.unique(np.linspace(0, max(sizes[number] - BLOCK, 0), blocks).astype(np.int64)).tolist()
        try:
            with open(path(number), "rb", buffering=0) as file:
                for offset in offsets:
                    digest.update(os.pread(file.fileno(), BLOCK, offset))
        except OSError:
            digest.update(b"unreadable")
    return digest.hexdigest()


def read_class_names(folder: Path) -> tuple[str, ...]:
    """The lines of `classes.txt` in the folder, the name of class 0 first; none if there is no such file."""
    path = folder / "classes.txt"
    if not path.exists():
        return ()
    with wrap_errors(path, "give it one class name on each line"):
        return tuple(line.strip() for line in path.read_text().rstrip().splitlines())
