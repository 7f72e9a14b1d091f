"""Files of data that is read row by row: .npy arrays, tar shards with their index, and HDF5."""

from __future__ import annotations

import io
import os
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from support.row_data import arrays, write_chunks, write_hdf5, write_tar

from fuzz.inputs import BOUNDARIES, NPY_HEADERS, mutated, npy
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.datasets.formats import tar_shards
from hvdtrain.datasets.paths import load_path
from hvdtrain.datasets.rows import LoadedSources


def npy_file(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def read_all(found: object) -> None:
    """Read up to 100 rows of both parts, as training does."""
    assert isinstance(found, LoadedSources)
    for source in (found.train, found.test):
        assert source.fingerprint
        source[np.arange(min(len(source), 100))]
        source[np.array([len(source) - 1])]


IMAGES, LABELS = map(npy_file, arrays("train"))
TEST_IMAGES, TEST_LABELS = map(npy_file, arrays("test"))
NPY = st.builds(npy, NPY_HEADERS, st.just(bytes(240)))


@FUZZ
@given(mutated((IMAGES,)) | NPY, mutated((LABELS,)) | NPY, st.booleans())
@example(IMAGES, LABELS, False)
def test_npy(images: bytes, labels: bytes, skip: bool) -> None:
    names = ("train-images.npy", "train-labels.npy", "test-images.npy", "test-labels.npy")
    files = dict(zip(names, (images, labels, TEST_IMAGES, TEST_LABELS), strict=True))
    with folder_of(**files) as folder, rejects_cleanly():
        read_all(load_path("--data", folder, skip))


def shard() -> bytes:
    with folder_of() as folder:
        return (write_tar(folder / "data") / "train-000000.tar").read_bytes()


SHARD = shard()


def cache_in(folder: Path) -> AbstractContextManager[object]:
    """The user's cache is in this folder."""
    return mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")})


@FUZZ
@given(mutated((SHARD,), (b"ustar", b"x", b"L", b"7777777777", b"\x80" + b"\xff" * 11)), st.booleans())
@example(SHARD, False)
def test_tar_shard(content: bytes, skip: bool) -> None:
    files = {"train-000000.tar": content, "test-000000.tar": SHARD}
    with folder_of(**files) as folder, cache_in(folder), rejects_cleanly():
        read_all(load_path("--data", folder, skip))


@FUZZ
@given(st.sampled_from(tar_shards.Index._fields), st.sampled_from([*BOUNDARIES, -1]), st.binary(max_size=9))
def test_index(field: str, value: int, content: bytes) -> None:
    """An index that another program wrote: rows may be wrong, but nothing is executed, and memory is bounded."""
    files = {"train-000000.tar": SHARD, "test-000000.tar": SHARD}
    with folder_of(**files) as folder, cache_in(folder):
        load_path("--data", folder)
        path = folder / tar_shards.INDEX
        with np.load(path) as found:
            known = dict(found)
        if value < 1 << 63:
            known[field] = np.full(len(known[field]), value).astype(known[field].dtype)
        np.savez(path, **known)
        path.write_bytes(path.read_bytes()[: None if content else 100] + content)
        with rejects_cleanly():
            read_all(load_path("--data", folder, True))


def hdf5_files() -> tuple[bytes, ...]:
    """Files in one piece and in chunks, without names of classes: HDF5's library may loop on damaged strings."""
    found = []
    with folder_of() as folder:
        for write in (write_hdf5, write_chunks):
            path = write(folder / write.__name__) / "data.h5"
            with h5py.File(path, "r+") as file:
                del file["classes"]
            found.append(path.read_bytes())
    return tuple(found)


@FUZZ
@given(mutated(hdf5_files(), (b"TREE", b"HEAP", b"SNOD", b"\xff" * 8)), st.booleans())
def test_hdf5(content: bytes, skip: bool) -> None:
    with folder_of(**{"data.h5": content}) as folder, rejects_cleanly():
        read_all(load_path("--data", folder, skip))
