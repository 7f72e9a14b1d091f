"""The user's own data: .npz files, IDX files, and paths that are neither."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.data_files import (
    BYTES,
    FLOATS,
    assert_rejected,
    idx_bytes,
    save_npz,
    tiny_mnist,
    write_files,
    write_own,
)

import hvdtrain
from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.formats.reading import read_class_names
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError


def test_pair_of_npz(tmp_path: Path) -> None:
    found = load_dataset(str(write_own(tmp_path)))
    assert found.train.arrays[0].dtype == np.uint8 and found.test.arrays[0].dtype == np.float32
    assert np.array_equal(found.train.arrays[0], BYTES[:, np.newaxis])
    assert np.array_equal(found.test.arrays[0], FLOATS[:, np.newaxis].astype(np.float32))
    assert found.test.arrays[1].dtype == np.int64 and found.test.arrays[1].tolist() == [3, 0]
    assert found.classes == tuple("0123") and found.train.arrays[0].flags.writeable


@pytest.mark.parametrize("layout", ["channels first", "channels last", "Fortran", "big-endian", "half"])
def test_layouts(layout: str, tmp_path: Path) -> None:
    expected = np.random.default_rng(0).random((5, 3, 32, 32)).astype(np.float16).astype(np.float32)
    images = {
        "channels first": expected,
        "channels last": expected.transpose(0, 2, 3, 1),
        "Fortran": np.asfortranarray(expected),
        "big-endian": expected.astype(">f4"),
        "half": expected.astype(np.float16),
    }[layout]
    save_npz(tmp_path, "all.npz", x_train=images, y_train=np.arange(5), x_test=images[:2], y_test=np.arange(2))
    found = load_dataset(str(tmp_path))
    assert np.array_equal(found.train.arrays[0], expected) and np.array_equal(found.test.arrays[0], expected[:2])
    assert found.train.arrays[0].flags.c_contiguous and found.train.arrays[0].dtype == np.dtype("float32")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_class_names_of_any_editor(encoding: str, end: str, tmp_path: Path) -> None:
    """Some write a byte order mark first."""
    (tmp_path / "classes.txt").write_bytes(f"Käse{end}b{end}".encode(encoding))
    assert read_class_names(tmp_path) == ("Käse", "b")


def test_one_npz_in_a_folder_or_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"x_train": BYTES, "y_train": np.arange(5) % 4, "x_test": BYTES[:1], "y_test": np.array([1])}
    save_npz(tmp_path, "anything.npz", **arrays)
    by_folder = load_dataset(str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_dataset("~/anything.npz").fingerprint == by_folder.fingerprint
    save_npz(tmp_path, "second.npz", **arrays)
    assert_rejected(tmp_path, str(tmp_path), "holds 2 .npz files")


def test_own_idx(tmp_path: Path) -> None:
    write_files(tmp_path, tiny_mnist((2, 3)), packed=False)
    assert load_dataset(str(tmp_path)).train.arrays[0].shape == (6, 1, 2, 3)


@pytest.mark.parametrize(
    ("file", "content", "texts"),
    [
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros((2, 2))), ["magic number is 00000802, expected 00000801"]),
        ("train-labels-idx1-ubyte", b"", ["magic number is nothing"]),
        ("train-images-idx3-ubyte", b"\0\0\x08\3\0\0", ["is truncated: it ends within its header"]),
        ("train-images-idx3-ubyte", idx_bytes(BYTES)[:-1], ["holds 29 values, its header says 30"]),
        ("train-images-idx3-ubyte", idx_bytes(BYTES) + b"\0", ["holds 31 values, its header says 30"]),
        (
            "train-images-idx3-ubyte",
            b"\0\0\x08\3" + b"\xff" * 12,
            ["holds 0 values, its header says"],
        ),
    ],
)
def test_own_idx_damaged(tmp_path: Path, file: str, content: bytes, texts: list[str]) -> None:
    write_files(tmp_path, {**tiny_mnist((2, 3)), file: content}, packed=False)
    assert_rejected(tmp_path, str(tmp_path / file), *texts, "write it again")
    (tmp_path / file).unlink()
    assert_rejected(tmp_path, str(tmp_path / file), "missing")


class Harm:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harm",)


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_own(tmp_path, labels=np.array([Harm()], object))
    assert_rejected(tmp_path, str(tmp_path / "train.npz"), "holds labels as pickled objects, which are never loaded")
    (tmp_path / "train.npz").write_bytes(pickle.dumps(Harm()))
    assert_rejected(tmp_path, str(tmp_path / "train.npz"), "cannot be read")
    assert not (tmp_path / "harm").exists()


def test_npz_without_the_arrays(tmp_path: Path) -> None:
    path = save_npz(tmp_path, pixels=BYTES) / "train.npz"
    assert_rejected(tmp_path, str(path), "holds no array named images (only pixels)", "numpy.savez")
    write_own(tmp_path)
    (tmp_path / "test.npz").unlink()
    assert_rejected(tmp_path, str(tmp_path / "test.npz"), "cannot be read", "No such file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images", "text")
    assert_rejected(tmp_path, str(path), "holds images, but not as an array")
    path.write_bytes(path.read_bytes()[:-5])
    assert_rejected(tmp_path, str(path), "cannot be read")


def test_npz_that_unpacks_to_more_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "train.npz", images=np.zeros((1000, 28, 28), np.uint8), labels=np.zeros(1000, int))
    monkeypatch.setattr(reading, "MEMORY", 500_000)
    assert_rejected(tmp_path, str(tmp_path / "train.npz"), "more than this machine's memory")


def test_programs_load_data_and_may_name_it(tmp_path: Path) -> None:
    found = hvdtrain.load_dataset(str(write_own(tmp_path)))
    images, labels = found.train[np.array([0])]
    assert images.shape == (1, *found.input_shape) and labels.shape == (1,)
    for options, begin in (({}, "nowhere: no such folder"), ({"name": "--data nowhere"}, "--data nowhere: no such")):
        with pytest.raises(UserError, match=f"^{begin}"):
            hvdtrain.load_dataset("nowhere", **options)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("fashion_mnist", ["did you mean fashion-mnist?"]),
        ("nowhere", ["no such folder", "digits, synthetic, fashion-mnist, mnist, cifar10"]),
        ("", ["no such folder"]),
        ("~nobody-of-this-name/x", ["no such folder"]),
        ("x\0y", ["no such folder"]),
        ("x" * 5000, ["no such folder"]),
        (".", ["no data of a known format", "train.npz and test.npz"]),
    ],
)
def test_unknown_names(name: str, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_rejected(name, *texts)
