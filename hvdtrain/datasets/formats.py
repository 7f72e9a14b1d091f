"""Reading files of images and labels: IDX, CIFAR-10, .npz.

A file is somebody else's: whatever a reader stumbles on becomes a UserError that names the file (`blame`).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import os
import re
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hvdtrain.errors import UserError

Arrays = tuple[np.ndarray, ...]
"""Four: images and labels to train on, then images and labels to test on."""

CIFAR_ARCHIVE, CIFAR_FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_RECORDS = 10_000
"""Records in each of the six files, https://www.cs.toronto.edu/~kriz/cifar.html."""
CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes of a record: the label, then the red, green and blue pixels."""

CHUNK = 1 << 20
LARGEST = 1 << 30
"""Bytes that are fetched of a published file, and unpacked to prove it; the largest is CIFAR-10's, with 170 MB."""


class Malformed(ValueError):
    """What is wrong with a file, as the rest of a sentence that begins with its name."""


def _memory() -> int:
    """Half of the bytes that this machine, or this process's cgroup, may hold: the kernel kills who takes it all."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    # As a container sees its own, of cgroups 2 and 1.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is `max`
            limits.append(int(Path(path).read_text()))
    return min(limits) // 2


# A file that unpacks to more is a mistake or a trap.
MEMORY = _memory()


@contextlib.contextmanager
def blame(where: Path, remedy: str, verb: str = "read") -> Iterator[None]:
    """Turn whatever goes wrong inside into a UserError of one sentence: `where`, the reason, the remedy.

    It catches every Exception: on bad bytes the readers of zip, tar and NumPy files raise a dozen kinds.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, Malformed) else f"cannot be {verb} ({said(error)})"
        raise UserError(f"{where}: {reason}; {remedy}") from None


def said(error: Exception) -> str:
    """An exception's words, on one line."""
    return shown(" ".join(str(error).split()) or type(error).__name__)


def shown(text: str) -> str:
    """Text that names addresses, without the user and password that a mirror's may have."""
    return re.sub(r"//[^/\s]*@", "//", text)


# Readers: bytes in, arrays out. They raise Malformed, or what the libraries raise.


def unpacked(file: BinaryIO, most: int | None = None) -> Iterator[bytes]:
    """A file in parts; unzipped where its content is gzip, for browsers unzip a file and leave its name.

    Raises Malformed where the gzip data is cut short, or larger than `most` bytes or this machine's memory.
    """
    most = min(most or MEMORY, MEMORY)
    allowed = "this machine's memory allows" if most == MEMORY else f"{most} bytes"
    zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    size = 0
    try:
        for chunk in _chunks(gzip.GzipFile(fileobj=file) if zipped else file):
            size += len(chunk)
            if size > most:
                raise Malformed(f"unpacks to more than {allowed}")
            yield chunk
    except EOFError:
        raise Malformed("is cut short: its gzip data has no end") from None


def _chunks(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK), b"")


def idx(content: bytearray, dimensions: int) -> np.ndarray:
    """The array in an IDX file of bytes, uint8, with `dimensions` axes; it shares the memory of `content`.

    The format is described at http://yann.lecun.com/exdb/mnist/. Raises Malformed.
    """
    magic, start = _header(dimensions)
    if content[:4] != magic:
        found = content[:4].hex() or "nothing"
        expected = f"expected {magic.hex()} for bytes in {dimensions} dimension(s)"
        raise Malformed(f"is no such IDX file: its magic number is {found}, {expected}")
    if len(content) < start:
        raise Malformed("is cut short: it ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise Malformed(f"holds {len(content) - start} values where its header promises {math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _header(dimensions: int) -> tuple[bytes, int]:
    """The first bytes of an IDX file of bytes, and where its values begin."""
    return bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions


def _idx_content(file: BinaryIO, dimensions: int) -> bytearray:
    """An IDX file, but of one that is longer than its header promises only as much as shows it."""
    content = bytearray()  # so that the arrays made of it can be written to, as PyTorch wants
    magic, start = _header(dimensions)
    for chunk in unpacked(file):
        content += chunk
        promised = math.prod(struct.unpack_from(f">{dimensions}I", content, 4)) if len(content) >= start else 0
        if content[:4] != magic or len(content) > start + promised:
            break
    return content


def read_idx(path: Path, remedy: str, sha256: str | None = None) -> np.ndarray:
    """The array in the IDX file `path`, plain or gzip: uint8, (n, height, width) or (n,) as its name says.

    Raises UserError where it is damaged, or its payload has another SHA-256 than the one given.
    """
    with blame(path, remedy), open(path, "rb") as file:
        dimensions = 3 if "idx3" in path.name else 1
        content = _idx_content(file, dimensions)
        if sha256:
            _compare(hashlib.sha256(content).hexdigest(), sha256)
        return idx(content, dimensions)


def cifar(parts: Iterable[tuple[str, bytes]]) -> Arrays:
    """CIFAR-10 from the names and contents of its six files, in any order.

    Images are (n, 3, 32, 32), uint8; labels (n,), int64. Raises Malformed, naming the one of the six.
    """
    images = np.empty((len(CIFAR_FILES) * CIFAR_RECORDS, 3, 32, 32), np.uint8)
    labels = np.empty(len(images), np.int64)
    missing = set(CIFAR_FILES)
    for name, content in parts:
        if len(content) != CIFAR_RECORDS * CIFAR_RECORD:
            raise Malformed(f"{name} holds {len(content)} bytes where {CIFAR_RECORDS * CIFAR_RECORD} belong")
        records = np.frombuffer(content, np.uint8).reshape(CIFAR_RECORDS, CIFAR_RECORD)
        if records[:, 0].max() > 9:
            raise Malformed(f"{name} holds labels up to {records[:, 0].max()} where 9 is the last")
        first = CIFAR_FILES.index(name) * CIFAR_RECORDS
        labels[first : first + CIFAR_RECORDS] = records[:, 0]
        images[first : first + CIFAR_RECORDS] = records[:, 1:].reshape(-1, 3, 32, 32)
        missing.discard(name)
    if missing:
        raise Malformed(f"holds no {', '.join(sorted(missing))}")
    train, test = slice(-CIFAR_RECORDS), slice(-CIFAR_RECORDS, None)
    return images[train], labels[train], images[test], labels[test]


def cifar_members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The six files in CIFAR-10's archive, taken by their exact names: nothing is unpacked onto the disk."""
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            content = archive.extractfile(member) if member.isfile() else None
            if content and folder == CIFAR_FOLDER and name in CIFAR_FILES:
                yield name, content.read(CIFAR_RECORDS * CIFAR_RECORD + 1)


def read_npz(path: Path, names: Iterable[str]) -> Arrays:
    """The named arrays in the .npz file `path`; never unpickles.

    Raises UserError where the file is damaged, or an array is missing, pickled or larger than memory.
    """
    with blame(path, "save arrays of numbers there with numpy.savez"):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MEMORY:
            raise Malformed(f"unpacks to {size / 2**30:,.0f} GiB, more than this machine's memory allows")
        with np.load(path, allow_pickle=False) as arrays:
            return tuple(_array(arrays, name) for name in names)


def _array(arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    if name not in arrays.files:
        raise Malformed(f"holds no array named {name} (only {', '.join(arrays.files) or 'nothing'})")
    try:
        array = arrays[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise Malformed(f"holds {name} as pickled objects, which are never loaded") from None
        raise
    if not isinstance(array, np.ndarray):  # NumPy gives the bytes of a member that is no .npy file
        raise Malformed(f"holds {name}, but not as an array")
    return array


def check(file: BinaryIO, name: str, sha256: str) -> None:
    """Raise Malformed unless the payload of `file` has this SHA-256; leaves the file at its beginning.

    The payload of a .tar.gz is the file itself, that of any other is what it holds once unzipped.
    """
    digest = hashlib.sha256()
    for chunk in _chunks(file) if name.endswith(".tar.gz") else unpacked(file, LARGEST):
        digest.update(chunk)
    file.seek(0)
    _compare(digest.hexdigest(), sha256)


def _compare(found: str, expected: str) -> None:
    if found != expected:
        raise Malformed(f"is corrupt: its content has SHA-256 {found}, expected {expected}")
