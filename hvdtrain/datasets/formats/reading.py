"""Files of data: errors that name them, limits of size, and checksums.

A file is watched for changes while training reads it, and known by a few of its blocks.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.system import credentials
from hvdtrain.system.resources import memory_bytes
from hvdtrain.system.text import printable

Arrays = tuple[np.ndarray, ...]
"""Four arrays: training images, training labels, test images, test labels."""
ImageSize = tuple[int | None, int, int] | None
"""What `Config.resized` returns."""

CHUNK = 1 << 20
"""Bytes that are read at a time."""
LARGEST = 1 << 30
"""Largest published file, in bytes, that is downloaded or decompressed; the largest one, CIFAR-10, has 170 MB."""
MEMORY = memory_bytes() // 2  # the kernel kills a process that uses all
"""Largest size, in bytes, of the decompressed content of a file; a larger one is a mistake or an attack."""
BLOCK = 4096
"""Bytes of a file that are read at one place for a fingerprint."""
MAX_FILES, MAX_BLOCKS = 512, 1024
"""Files that a fingerprint looks into, and blocks that it reads of all of them together."""
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".avif"),
    *HEIF_SUFFIXES,
)
VALIDATION_NAMES = ("validation", "valid", "val", "dev")
"""Of a part next to `train`, by which the best weights are chosen; the test part where there is no `test`."""
CHANGED = "leave the data as it is while a job trains on it"
READABLE = "check the path and its permissions"


class Malformed(ValueError):
    """What is wrong with a file, as the rest of a sentence that begins with the file's name."""


class DataChanged(UserError):
    """A file of the data changed since training began; no row of it can be trusted, so none is skipped."""


@contextlib.contextmanager
def wrap_errors(path: Path | str, remedy: str, verb: str = "read") -> Iterator[None]:
    """Turn any exception inside into a UserError of one line, which names the path.

    It catches every Exception: for invalid bytes the readers of zip, tar and NumPy files raise a dozen kinds.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, Malformed) else f"cannot be {verb} ({one_line(error)})"
        raise UserError(f"{path}: {reason}", remedy) from None


def one_line(error: Exception) -> str:
    """An exception's message on one line, without passwords; its type if it has no message."""
    return credentials.removed(" ".join(str(error).split()) or type(error).__name__)


def decompressed(file: BinaryIO, limit: int | None = None) -> Iterator[bytes]:
    """The content of a file in chunks, decompressed if it is gzip data.

    The content decides, not the name: browsers decompress a file and keep its name. Raises Malformed if the gzip data
    is truncated, or the content exceeds `limit` bytes or MEMORY.
    """
    limit = min(limit or MEMORY, MEMORY)
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    size = 0
    try:
        for chunk in chunks(gzip.GzipFile(fileobj=file) if is_gzip else file):
            size += len(chunk)
            if size > limit:
                allowed = "this machine's memory allows" if limit == MEMORY else f"{limit} bytes"
                raise Malformed(f"unpacks to more than {allowed}")
            yield chunk
    except EOFError:
        raise Malformed("is truncated: its gzip data has no end") from None


def check_size(size: int) -> None:
    """Raise Malformed for content of so many bytes that this machine's memory does not allow it."""
    if size > MEMORY:
        raise Malformed(f"unpacks to {size / 2**30:,.0f} GiB, more than this machine's memory allows")


def chunks(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK), b"")


def check_sha256(file: BinaryIO, name: str, sha256: str) -> None:
    """Raise Malformed unless the payload of `file` has this SHA-256; leaves the file at its beginning.

    The payload of a .tar.gz file is the file itself, that of any other its decompressed content.
    """
    digest = hashlib.sha256()
    for chunk in chunks(file) if name.endswith(".tar.gz") else decompressed(file, LARGEST):
        digest.update(chunk)
    file.seek(0)
    compare_sha256(digest.hexdigest(), sha256)


def compare_sha256(actual: str, expected: str) -> None:
    if actual != expected:
        raise Malformed(f"is corrupt: its content has SHA-256 {actual}, expected {expected}")


def check_unchanged(path: str | bytes | Path, now: os.stat_result, size: int, mtime_ns: int) -> None:
    """Raise DataChanged unless a file has the size (bytes) and the time of its last change that it had at the start."""
    if (now.st_size, now.st_mtime_ns) != (size, mtime_ns):
        how = f"its size is {now.st_size} bytes, and was {size}" if now.st_size != size else "it was written again"
        raise DataChanged(f"{printable(os.fsdecode(path))} changed during training: {how}", CHANGED)


def fingerprint(path: Callable[[int], str | bytes | Path], names: Sequence[str | bytes], sizes: Sequence[int]) -> str:
    """SHA-256 of names, sizes (bytes) and some of the content of files, in hexadecimal digits.

    path: of the file with a number.
    Reads at most MAX_BLOCKS blocks of BLOCK bytes, evenly spread over MAX_FILES files, which are evenly spread over
    all: seconds for any amount of data. Copies of the files have the same fingerprint. A file that cannot be read
    counts by its name and size.
    """
    digest = hashlib.sha256()
    for name, size in zip(names, sizes, strict=True):
        digest.update(b"%s\0%d\0" % (name if isinstance(name, bytes) else os.fsencode(name), size))
    chosen = np.unique(np.linspace(0, len(names) - 1, MAX_FILES).astype(np.int64)).tolist()
    for number in chosen:
        blocks = max(MAX_BLOCKS // len(chosen), 2)
        offsets = np.unique(np.linspace(0, max(sizes[number] - BLOCK, 0), blocks).astype(np.int64)).tolist()
        try:
            with open(path(number), "rb", buffering=0) as file:
                for offset in offsets:
                    digest.update(os.pread(file.fileno(), BLOCK, offset))
        except OSError:
            digest.update(b"unreadable")
    return digest.hexdigest()


def parts_beside(names: Collection[str], where: str | Path) -> list[str]:
    """Of names next to `train`, those of test rows and, after these, validation rows. where: for messages.

    Raises UserError for several validation parts.
    """
    validation = [name for name in VALIDATION_NAMES if name in names]
    if len(validation) > 1:
        raise UserError(f"{where}: has several validation parts ({', '.join(validation)})", "leave one of them there")
    return ["test"] * ("test" in names) + validation


def read_class_names(folder: Path) -> tuple[str, ...]:
    """The lines of `classes.txt` in the folder, the name of class 0 first; none if there is no such file."""
    path = folder / "classes.txt"
    if not path.exists():
        return ()
    with wrap_errors(path, "give it one class name on each line"):
        return tuple(line.strip() for line in path.read_text("utf-8-sig").rstrip().splitlines())
