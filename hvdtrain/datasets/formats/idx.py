"""IDX files, the format of MNIST: http://yann.lecun.com/exdb/mnist/."""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hvdtrain.datasets.formats.reading import Malformed, compare_sha256, decompressed, wrap_errors


def read_idx(path: Path, remedy: str, sha256: str | None = None) -> np.ndarray:
    """The array in the IDX file `path`, plain or gzip: uint8, (n, height, width) or (n,) as the name says.

    remedy: what to do about a damaged file. sha256: of the decompressed content. Raises UserError if the file is
    damaged or its content has another SHA-256.
    """
    with wrap_errors(path, remedy), open(path, "rb") as file:
        dimensions = 3 if "idx3" in path.name else 1
        content = _content(file, dimensions)
        if sha256:
            compare_sha256(hashlib.sha256(content).hexdigest(), sha256)
        return parse_idx(content, dimensions)


def _content(file: BinaryIO, dimensions: int) -> bytearray:
    """The decompressed file; of one with too many values, or of another format, only enough to see that."""
    content = bytearray()  # writable, as PyTorch requires of the arrays that share it
    magic, start = _header(dimensions)
    for chunk in decompressed(file):
        content += chunk
        promised = math.prod(struct.unpack_from(f">{dimensions}I", content, 4)) if len(content) >= start else 0
        if content[:4] != magic or len(content) > start + promised:
            break
    return content


def parse_idx(content: bytearray, dimensions: int) -> np.ndarray:
    """The uint8 array with `dimensions` axes in the content of an IDX file; shares its memory. Raises Malformed."""
    magic, start = _header(dimensions)
    if content[:4] != magic:
        found = content[:4].hex() or "nothing"
        expected = f"expected {magic.hex()} for bytes in {dimensions} dimension(s)"
        raise Malformed(f"is not an IDX file of this kind: its magic number is {found}, {expected}")
    if len(content) < start:
        raise Malformed("is truncated: it ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise Malformed(f"holds {len(content) - start} values, its header says {math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _header(dimensions: int) -> tuple[bytes, int]:
    """The magic number of an IDX file of bytes, and the offset of its values."""
    return bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
