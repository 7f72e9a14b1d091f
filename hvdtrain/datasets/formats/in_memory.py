"""Formats of arrays that are read whole: IDX, that of MNIST (http://yann.lecun.com/exdb/mnist/), and NumPy's .npz."""

from __future__ import annotations

import hashlib
import math
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.formats.reading import Arrays, Malformed, compare_sha256, decompressed, wrap_errors


def read_idx(path: Path, remedy: str, sha256: str | None = None) -> np.ndarray:
    """The array in the IDX file `path`, plain or gzip: uint8, (n, height, width) or (n,) as the name says.

    remedy: what to do about a damaged file. sha256: of the decompressed content. Raises UserError if the file is
    damaged or its content has another SHA-256.
    """
    with wrap_errors(path, remedy), open(path, "rb") as file:
        dimensions = 3 if "idx3" in path.name else 1
        content = _idx_content(file, dimensions)
        if sha256:
            compare_sha256(hashlib.sha256(content).hexdigest(), sha256)
        return parse_idx(content, dimensions)


def _idx_content(file: BinaryIO, dimensions: int) -> bytearray:
    """The decompressed file; of one with too many values, or of another format, only enough to see that."""
    content = bytearray()  # writable, as PyTorch requires of the arrays that share it
    magic, start = _idx_header(dimensions)
    for chunk in decompressed(file):
        content += chunk
        promised = math.prod(struct.unpack_from(f">{dimensions}I", content, 4)) if len(content) >= start else 0
        if content[:4] != magic or len(content) > start + promised:
            break
    return content


def parse_idx(content: bytearray, dimensions: int) -> np.ndarray:
    """The uint8 array with `dimensions` axes in the content of an IDX file; shares its memory. Raises Malformed."""
    magic, start = _idx_header(dimensions)
    if content[:4] != magic:
        number = content[:4].hex() or "nothing"
        expected = f"expected {magic.hex()} for bytes in {dimensions} dimension(s)"
        raise Malformed(f"is not an IDX file of this kind: its magic number is {number}, {expected}")
    if len(content) < start:
        raise Malformed("is truncated: it ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise Malformed(f"holds {len(content) - start} values, its header says {math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _idx_header(dimensions: int) -> tuple[bytes, int]:
    """The magic number of an IDX file of bytes, and the offset of its values."""
    return bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions


def read_npz(path: Path, names: Iterable[str], missing: bool = False) -> Arrays:
    """The named arrays in the .npz file `path`, or with `missing` those of them that are there; never unpickles.

    Raises UserError if the file is damaged, or an array is missing, pickled or larger than memory.
    """
    with wrap_errors(path, "save numeric arrays there with numpy.savez"):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > reading.MEMORY:
            raise Malformed(f"unpacks to {size / 2**30:,.0f} GiB, more than this machine's memory allows")
        with np.load(path, allow_pickle=False) as arrays:
            return tuple(_array(arrays, name) for name in names if name in arrays.files or not missing)


def _array(arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    if name not in arrays.files:
        raise Malformed(f"holds no array named {name} (only {', '.join(arrays.files) or 'nothing'})")
    try:
        array = arrays[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise Malformed(f"holds {name} as pickled objects, which are never loaded") from None
        raise
    if not isinstance(array, np.ndarray):  # NumPy returns the bytes of a member that is not a .npy file
        raise Malformed(f"holds {name}, but not as an array")
    return array
