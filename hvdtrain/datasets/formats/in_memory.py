"""Formats that are read whole: IDX, that of MNIST, NumPy's .npz, and CIFAR-10's binary version.

http://yann.lecun.com/exdb/mnist/ and https://www.cs.toronto.edu/~kriz/cifar.html describe the first and the last.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
import tarfile
import zipfile
from collections.abc import Iterable
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

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_FILES = tuple(
    f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
)
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


def read_cifar10(archive: BinaryIO) -> Arrays:
    """CIFAR-10 in its archive, whose checksum is known to be right; nothing is extracted to the disk.

    Images are (n, 3, 32, 32), uint8; labels (n,), int64.
    """
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=archive, mode="r:gz") as tar:
        for member in tar:
            if member.name in CIFAR_FILES and (file := tar.extractfile(member)):
                contents[member.name] = file.read()
    parts = (b"".join(contents[name] for name in names) for names in (CIFAR_FILES[:5], CIFAR_FILES[5:]))
    arrays = (np.frombuffer(part, np.uint8).reshape(-1, CIFAR_RECORD_BYTES) for part in parts)
    pairs = ((rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)) for rows in arrays)
    return tuple(itertools.chain.from_iterable(pairs))
