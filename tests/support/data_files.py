"""Small data files in the published formats."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.datasets.built_in import IDX_FILES, PUBLISHED
from hvdtrain.datasets.formats import in_memory


def write_files(folder: Path, files: dict[str, bytes], packed: bool = True) -> Path:
    """Write the files, as .gz if `packed`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return folder


def idx_bytes(array: np.ndarray) -> bytes:
    """The array as an IDX file of bytes."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def tiny_mnist(shape: tuple[int, int] = (28, 28)) -> dict[str, bytes]:
    """Four IDX files, named as MNIST's: 6 training images, 3 test images."""
    generator = np.random.default_rng(0)
    arrays = [
        array for count in (6, 3) for array in (generator.integers(0, 256, (count, *shape)), np.arange(count) % 4)
    ]
    return dict(zip(IDX_FILES, map(idx_bytes, arrays), strict=True))


MNIST = tiny_mnist()
MNIST_GZIP = {f"{name}.gz": gzip.compress(content) for name, content in MNIST.items()}
MNIST_SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in MNIST.items()}


def cifar_records(number: int) -> bytes:
    """Two CIFAR-10 records, whose red, green and blue have values derived from `number`."""
    return b"".join(bytes([label]) + b"".join(bytes([10 * number + c]) * 1024 for c in range(3)) for label in (0, 9))


CIFAR = {name: cifar_records(number) for number, name in enumerate(in_memory.CIFAR_FILES)}
"""The six files of CIFAR-10, with two records each."""


def cifar_archive(folder: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of these files, after members that would do harm if they were extracted; becomes the published one."""
    path = folder / in_memory.CIFAR_ARCHIVE
    harmful = {"../../harm": b"x", "/tmp/hvdtrain-harm": b"x", "elsewhere/data_batch_1.bin": b"x"}
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {**harmful, **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    monkeypatch.setitem(PUBLISHED, "cifar10", PUBLISHED["cifar10"]._replace(sha256=sums))
    return path


def save_npz(folder: Path, name: str = "train.npz", **arrays: object) -> Path:
    """Write an .npz file; returns the folder."""
    np.savez(folder / name, **arrays)
    return folder


BYTES = np.arange(30, dtype=np.uint8).reshape(5, 2, 3)
FLOATS = np.linspace(0, 1, 12).reshape(2, 2, 3)


def write_own(folder: Path, images: np.ndarray = BYTES, labels: object = (0, 1, 2, 3, 0)) -> Path:
    """A folder of images of 1x2x3 in 4 classes, with these training images and labels, and two valid test images."""
    save_npz(folder, images=images, labels=np.asarray(labels))
    return save_npz(folder, "test.npz", images=FLOATS, labels=np.array([3, 0], np.uint8))
