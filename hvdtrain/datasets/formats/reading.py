"""Shared by all readers: errors that name the file, limits of size, decompression, and checksums."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.system import credentials
from hvdtrain.system.resources import memory_bytes

Arrays = tuple[np.ndarray, ...]
"""Four arrays: training images, training labels, test images, test labels."""

CHUNK = 1 << 20
"""Bytes that are read at a time."""
LARGEST = 1 << 30
"""Largest published file, in bytes, that is downloaded or decompressed; the largest one, CIFAR-10, has 170 MB."""


class Malformed(ValueError):
    """What is wrong with a file, as the rest of a sentence that begins with the file's name."""


MEMORY = memory_bytes() // 2  # the kernel kills a process that uses all
"""Largest size, in bytes, of the decompressed content of a file; a larger one is a mistake or an attack."""


@contextlib.contextmanager
def wrap_errors(path: Path, remedy: str, verb: str = "read") -> Iterator[None]:
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


def chunks(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    """The content of a file in parts of CHUNK bytes."""
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


def compare_sha256(found: str, expected: str) -> None:
    """Raise Malformed unless both are equal."""
    if found != expected:
        raise Malformed(f"is corrupt: its content has SHA-256 {found}, expected {expected}")
