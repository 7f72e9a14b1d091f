"""CIFAR-10 from its archive and from extracted files; arbitrary bytes in .npz and IDX files are loaded or rejected."""

from __future__ import annotations

import gzip
import io
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data_files import (
    BYTES,
    CIFAR,
    FLOATS,
    assert_rejected,
    cifar_archive,
    cifar_records,
    tiny_mnist,
    write_files,
)

from hvdtrain.datasets.formats import in_memory
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError

QUICK = settings(derandomize=True, max_examples=150, database=None)


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """A good file with some bytes changed and its end cut off."""
    changes = st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=4)

    def apply(changes: list[tuple[int, int]], length: int) -> bytes:
        content = bytearray(good)
        for position, value in changes:
            content[position] = value
        return bytes(content[:length])

    return st.builds(apply, changes, st.just(len(good)) | st.integers(0, len(good)))


def loads_or_rejects(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            Path(name, file).write_bytes(content)
        try:
            found = load_dataset(name)
        except UserError as error:
            assert str(error).startswith((name, f"--data {name}")) and "\n" not in str(error)
        else:
            assert len(found.train.arrays[0]) == len(found.train.arrays[1])
            assert found.train.arrays[0].shape[1:] == found.input_shape == (1, 2, 3)


IMAGES = tiny_mnist((2, 3))["train-images-idx3-ubyte"]


@QUICK
@given(st.binary(max_size=40) | damaged(IMAGES) | st.binary().map(gzip.compress) | damaged(gzip.compress(IMAGES)))
def test_any_bytes_as_idx(content: bytes) -> None:
    loads_or_rejects({**tiny_mnist((2, 3)), "train-images-idx3-ubyte": content})


def npz_bytes(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


TEST = npz_bytes(images=FLOATS, labels=np.array([3, 0]))


@QUICK
@given(st.binary(max_size=40) | damaged(npz_bytes(images=BYTES, labels=np.arange(5) % 4)))
def test_any_bytes_as_npz(content: bytes) -> None:
    loads_or_rejects({"train.npz": content, "test.npz": TEST})


HEADERS = (
    st.text("{}()[]'descrshapefortran_order:,<|fiuOVSU0123456789 \n#\\", max_size=60)
    | st.sampled_from(["(" * 5000, "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "0j + 1"])
    | st.builds(
        "{{'descr': {!r}, 'fortran_order': {}, 'shape': {}, }}".format,
        st.sampled_from(["<f4", "|V0", "|S0", "|u1", "M8[s]", "", [("a", "<f4")], ("<f4", (2,)), None]),
        st.booleans(),
        st.lists(st.integers(-2, 2**70), max_size=4).map(tuple) | st.just("x"),
    )
)


@QUICK
@given(HEADERS, st.binary(max_size=40))
def test_any_header_in_npz(header: str, values: bytes) -> None:
    text = header.encode("latin1") + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values)
    loads_or_rejects({"train.npz": file.getvalue(), "test.npz": TEST})


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10(cifar_folder: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if packed:
        cifar_archive(cifar_folder, dict(reversed(CIFAR.items())), monkeypatch)
    else:
        write_files(cifar_folder, CIFAR, packed=False)
    before = sorted(cifar_folder.parent.rglob("*"))
    found = load_dataset("cifar10", offline=True)
    assert found.train.arrays[0].shape == (10, 3, 32, 32) and found.test.arrays[0].shape == (2, 3, 32, 32)
    assert found.train.arrays[1].tolist() == [0, 9] * 5 and found.classes[9] == "truck"
    assert found.train.arrays[0][2, :, 0, 0].tolist() == [10, 11, 12]
    assert found.test.arrays[0][0, :, 31, 31].tolist() == [50, 51, 52]
    assert found.train.arrays[0].flags.writeable and found.test.arrays[0].flags.c_contiguous
    assert sorted(cifar_folder.parent.rglob("*")) == before and not Path("/tmp/hvdtrain-harm").exists()


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        (
            {**CIFAR, "data_batch_3.bin": b"\0" * 6145},
            ["data_batch_3.bin holds 6145 bytes, expected 6146"],
        ),
        ({**CIFAR, "test_batch.bin": b"\xc8" + cifar_records(0)[1:]}, ["test_batch.bin holds labels up to 200"]),
        ({name: CIFAR[name] for name in in_memory.CIFAR_FILES[:5]}, ["lacks test_batch.bin"]),
    ],
)
def test_cifar10_damaged(
    cifar_folder: Path, parts: dict[str, bytes], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cifar_archive(cifar_folder, parts, monkeypatch)
    assert_rejected("cifar10", str(path), *texts)
    path.write_bytes(path.read_bytes()[:-20])
    assert_rejected("cifar10", str(path), "is corrupt")
    if len(parts) == 6:
        write_files(cifar_folder, parts, packed=False)
        assert_rejected("cifar10", str(cifar_folder), *texts)
