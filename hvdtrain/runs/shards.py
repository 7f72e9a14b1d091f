"""Arrays in files of safetensors, of which each holds at most SHARD_BYTES of them, or one larger array.

Both directions stream: besides the arrays, memory holds CHUNK_BYTES of a file at a time, and its checksum is computed
on the way.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open

from hvdtrain.errors import UserError
from hvdtrain.networks.description import Weights
from hvdtrain.system.checkpoint_folder import CHUNK_BYTES, Damaged, Manifest, array_files
from hvdtrain.system.files import open_regular
from hvdtrain.system.resources import memory_bytes

SHARD_BYTES = 1 << 30
"""Bytes of arrays in a file; more only if they are one array."""
LENGTH_BYTES = 8
"""The length of a header in front of it; headers are multiples of it."""
LARGEST_HEADER = 100_000_000
"""Bytes of the largest header that the library accepts."""
TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
"""NumPy's types by their names in safetensors."""
NAMES = {dtype: name for name, dtype in TYPES.items()}


def write(folder: Path, stem: str, arrays: Weights) -> dict[str, tuple[str, int]]:
    """Write arrays to new files in `folder`, and flush them to disk; returns SHA-256 and bytes of each file, by name.

    stem: WEIGHTS or OPTIMIZER. Raises OSError if the disk does not accept them, UserError for an array of a type that
    safetensors lacks.
    """
    parts = _divided(arrays)
    names = array_files(stem, len(parts))
    return {name: _write_file(folder / name, part) for name, part in zip(names, parts, strict=True)}


def _divided(arrays: Weights) -> list[Weights]:
    """The arrays of each file, in their order; one empty file if there are none."""
    parts: list[Weights] = [{}]
    size = 0
    for name, array in arrays.items():
        if parts[-1] and size + array.nbytes > SHARD_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = array
        size += array.nbytes
    return parts


def _write_file(path: Path, arrays: Weights) -> tuple[str, int]:
    """Write one file; returns its SHA-256 and its bytes."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for content in _contents(arrays):
            for start in range(0, len(content), CHUNK_BYTES):
                chunk = content[start : start + CHUNK_BYTES]
                digest.update(chunk)
                size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size


def _contents(arrays: Weights) -> Iterator[memoryview]:
    """The bytes of a file: the length of its header, the header, and each array."""
    header, end = {}, 0
    # Types with larger elements come first, so that each array begins at a multiple of its element's size.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    for name, array in ordered:
        if array.dtype.name not in NAMES:
            raise UserError(f"parameter {name} has type {array.dtype.name}", f"use one of {', '.join(NAMES)}")
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    yield memoryview(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for _, array in ordered:
        yield _bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))


def _bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def read(manifest: Manifest, stem: str) -> Weights:
    """The arrays that `write` has written. stem: WEIGHTS or OPTIMIZER.

    Raises Damaged if files are not what the manifest says; SafetensorError, OSError, ValueError or KeyError if they
    hold something else.
    """
    arrays: Weights = {}
    for name in manifest.files_of(stem):
        part = _read_file(manifest, name)
        if twice := arrays.keys() & part.keys():
            raise ValueError(f"{name} has arrays of another file: {min(twice)!r:.80}")
        arrays |= part
    return arrays


def check_memory(manifest: Manifest, stems: tuple[str, ...]) -> None:
    """Raise Damaged if files with arrays are larger, together, than the memory: no run here can have written them.

    Of a sparse file, that takes no disk, all bytes count.
    """
    sizes = [os.stat(manifest.path / name).st_size for stem in stems for name in manifest.files_of(stem)]
    if sum(sizes) > (memory := memory_bytes()):
        raise Damaged(f"{manifest.path}: has {sum(sizes)} bytes, and the memory of this machine {memory}")


def _read_file(manifest: Manifest, name: str) -> Weights:
    """The arrays of one file, if it is what the manifest says."""
    path, digest = manifest.path / name, hashlib.sha256()
    arrays = _allocated(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size - sum(array.nbytes for array in arrays.values())
        if not LENGTH_BYTES <= size <= LENGTH_BYTES + LARGEST_HEADER:
            raise ValueError(f"{name} changes while it is read")
        digest.update(file.read(size))
        for array in arrays.values():
            content = _bytes(array)
            for start in range(0, len(content), CHUNK_BYTES):
                chunk = content[start : start + CHUNK_BYTES]
                size += file.readinto(chunk)
                digest.update(chunk)
    manifest.check(name, digest.hexdigest(), size)
    return arrays


def _allocated(path: Path) -> Weights:
    """Arrays of the types and shapes in a file, in the order of their bytes, which follow its header.

    The memory of an array is taken only when bytes are written to it.
    """
    open_regular(path).close()  # safe_open would wait for the writer of a pipe
    with safe_open(path, framework="np") as file:
        slices = {name: file.get_slice(name) for name in file.offset_keys()}
        types = {name: np.dtype(TYPES[piece.get_dtype()]).newbyteorder("<") for name, piece in slices.items()}
        return {name: np.empty(piece.get_shape(), types[name]) for name, piece in slices.items()}
