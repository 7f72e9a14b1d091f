"""Formats that are read whole: IDX, that of MNIST, NumPy's .npz, and CIFAR-10's binary version.

http://yann.lecun.com/exdb/mnist/ and https://www.cs.toronto.edu/~kriz/cifar.html describe the first and the last.
"""

from __future__ import annotations

import hashlib
import math
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hvdtrain.datasets.formats.reading import (
    Arrays,
    Malformed,
    check_size,
    compare_sha256,
    decompressed,
    wrap_errors,
)

CIFAR_ARCHIVE, CIFAR_FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_RECORDS = 10_000
"""Records in each of the six files."""
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32
"""A record is the label, then the red, green and blue pixels."""


def read_idx(path: Path, remedy: str, sha256: str | None = None) -> np.ndarray:
    """The array in the IDX file `path`, plain or gzip: uint8, (n, height, width) or (n,) as the name says.

    remedy: what to do about a damaged file. sha256: of the decompressed content. Raises UserError if the file is
    damaged or its content has another SHA-256.
    """
    dimensions = 3 if "idx3" in path.name else 1
    magic, start = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    with wrap_errors(path, remedy), open(path, "rb") as file:
        content = bytearray()  # writable, as PyTorch requires of the arrays that share it
        shape: tuple[int, ...] = ()
        for chunk in decompressed(file):
            content += chunk
            if len(content) >= start:
                shape = struct.unpack_from(f">{dimensions}I", content, 4)
                if content[:4] != magic or len(content) > start + math.prod(shape):
                    break  # one with too many values, or of another format
        if sha256:
            compare_sha256(hashlib.sha256(content).hexdigest(), sha256)
        if content[:4] != magic:
            number = content[:4].hex() or "nothing"
            expected = f"expected {magic.hex()} for bytes in {dimensions} dimension(s)"
            raise Malformed(f"is not an IDX file of this kind: its magic number is {number}, {expected}")
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_npz(path: Path, names: Iterable[str], missing: bool = False) -> Arrays:
    """The named arrays in the .npz file `path`, or with `missing` those of them that are there; never unpickles.

    Raises UserError if the file is damaged, or an array is missing, pickled or larger than memory.
    """
    with wrap_errors(path, "save numeric arrays there with numpy.savez"):
        with zipfile.ZipFile(path) as archive:
            check_size(sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            # NumPy returns the bytes of a member that is not a .npy file.
            return tuple(np.asarray(arrays[name]) for name in names if name in arrays.files or not missing)


def parse_cifar10(files: Iterable[tuple[str, bytes]]) -> Arrays:
    """CIFAR-10 from the names and contents of CIFAR_FILES, in any order.

    Images are (n, 3, 32, 32), uint8; labels (n,), int64. Raises Malformed, naming the file at fault.
    """
    contents, size = dict(files), CIFAR_RECORDS * CIFAR_RECORD_BYTES
    if missing := sorted(set(CIFAR_FILES) - contents.keys()):
        raise Malformed(f"lacks {', '.join(missing)}")
    for name, content in contents.items():
        if len(content) != size:
            raise Malformed(f"{name} holds {len(content)} bytes, expected {size}")
        if (largest := max(content[::CIFAR_RECORD_BYTES])) > 9:
            raise Malformed(f"{name} holds labels up to {largest}, the largest valid one is 9")
    records = np.frombuffer(b"".join(contents[name] for name in CIFAR_FILES), np.uint8).reshape(-1, CIFAR_RECORD_BYTES)
    images, labels = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
    train, test = slice(-CIFAR_RECORDS), slice(-CIFAR_RECORDS, None)
    return images[train], labels[train], images[test], labels[test]


def cifar_members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Names and contents of CIFAR_FILES in the archive, by their exact names; nothing is extracted to the disk."""
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            content = archive.extractfile(member) if member.isfile() else None
            if content and folder == CIFAR_FOLDER and name in CIFAR_FILES:
                # One byte more shows that a file is too long.
                yield name, content.read(CIFAR_RECORDS * CIFAR_RECORD_BYTES + 1)
