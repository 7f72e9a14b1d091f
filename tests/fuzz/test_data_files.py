"""Files of data sets, read whole or row by row, and images to classify."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from support.data_files import tiny_mnist
from support.networks import LENET
from support.row_data import arrays

from fuzz.inputs import BOUNDARIES, NPY_HEADERS, mutated, npy
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.datasets.formats.image_files import read_image
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset


def idx_file(*shape: int, values: int | None = None) -> bytes:
    count = int(np.prod(shape)) if values is None else values
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(i % 256 for i in range(count))


def npz_file(save: Callable[..., None], **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def npz_member(header: str, values: bytes) -> bytes:
    """An .npz whose only array has this header, valid or not."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", npy(header, values))
    return file.getvalue()


def load(files: dict[str, bytes]) -> None:
    """A folder of these files has as many labels as images, or its error names what is wrong."""
    with folder_of(**files) as folder, rejects_cleanly():
        try:
            found = load_dataset(str(folder))
        except UserError as error:
            assert str(error).startswith((str(folder), f"--data {folder}")) and "\n" not in str(error)
            raise
        assert len(found.train.arrays[0]) == len(found.train.arrays[1])
        assert found.train.arrays[0].shape[1:] == found.input_shape == (1, 3, 4)


IMAGES = idx_file(6, 3, 4)
IDX_BYTES = (
    mutated((IMAGES, gzip.compress(IMAGES)), (b"\x1f\x8b", b"\0\0\x08\x03"))
    | st.lists(st.sampled_from(BOUNDARIES), min_size=3, max_size=3).map(
        lambda n: idx_file(*(i % (1 << 32) for i in n), values=24)
    )
    | mutated((IMAGES,)).map(gzip.compress)
)


@FUZZ
@given(IDX_BYTES)
@example(gzip.compress(IMAGES + bytes(1 << 26)) * 40)
def test_idx(content: bytes) -> None:
    load({**tiny_mnist((3, 4)), "train-images-idx3-ubyte": content})


ARRAYS = {"images": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "labels": np.array([3, 0])}


@FUZZ
@given(
    mutated((npz_file(np.savez, **ARRAYS), npz_file(np.savez_compressed, **ARRAYS)), (b"PK\x01\x02", b"PK\x05\x06"))
    | st.builds(npz_member, NPY_HEADERS, st.binary(max_size=40))
)
def test_npz(content: bytes) -> None:
    load({"train.npz": content, "test.npz": npz_file(np.savez, **ARRAYS)})


def image_file(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(144, dtype=np.uint8).reshape(12, 12)).convert(mode).save(file, kind)
    return file.getvalue()


PICTURES = tuple(
    image_file(kind, mode)
    for kind, mode in (("PNG", "L"), ("PNG", "P"), ("PNG", "RGBA"), ("JPEG", "RGB"), ("GIF", "P"), ("BMP", "RGB"),
                       ("TIFF", "L"), ("PPM", "RGB"), ("WEBP", "RGB"), ("TGA", "L"),
                       ("ICO", "RGBA"), ("PCX", "L"), ("SGI", "L"))
)  # fmt: skip


@FUZZ
@given(mutated(PICTURES, (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"\xff\xda", b"\xff\xc0")), st.booleans())
@example(b"P6\n12 \xff5\n", False)
def test_image(content: bytes, invert: bool) -> None:
    with folder_of(picture=content) as folder, rejects_cleanly():
        assert read_image(folder / "picture", LENET.input_shape, invert).shape == (1, 28, 28)


def npy_file(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def read_all(found: Dataset) -> None:
    """Read up to 100 rows of both parts, as training does."""
    for source in (found.train, found.test):
        assert source.fingerprint
        source[np.arange(min(len(source), 100))]
        source[np.array([len(source) - 1])]


ROW_IMAGES, ROW_LABELS = map(npy_file, arrays("train"))
TEST_IMAGES, TEST_LABELS = map(npy_file, arrays("test"))
NPY = st.builds(npy, NPY_HEADERS, st.just(bytes(240)))


@FUZZ
@given(mutated((ROW_IMAGES,)) | NPY, mutated((ROW_LABELS,)) | NPY, st.booleans())
@example(ROW_IMAGES, ROW_LABELS, False)
def test_npy(images: bytes, labels: bytes, skip: bool) -> None:
    names = ("train-images.npy", "train-labels.npy", "test-images.npy", "test-labels.npy")
    files = dict(zip(names, (images, labels, TEST_IMAGES, TEST_LABELS), strict=True))
    with folder_of(**files) as folder, rejects_cleanly():
        read_all(load_dataset(str(folder), skip_bad_rows=skip))
