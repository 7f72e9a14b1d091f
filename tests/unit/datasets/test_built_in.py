"""Built-in data sets: published ones in the user's folder and in the cache, digits and synthetic images."""

from __future__ import annotations

import gzip
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.data_files import MNIST, assert_rejected, idx_bytes, write_files

from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.layers import Shape


@pytest.mark.parametrize(
    ("name", "mean", "first"),
    # The means are those that everyone normalizes with.
    [("fashion-mnist", 0.2860, [9, 0, 0, 3, 0]), ("mnist", 0.1307, [5, 0, 4, 1, 9])],
)
def test_real_data(name: str, mean: float, first: list[int], real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (real_data / name).is_dir():
        pytest.skip(f"needs {name}/ in HVDTRAIN_DATA")
    monkeypatch.setenv("HVDTRAIN_DATA", str(real_data))
    found = load_dataset(name, offline=True)
    assert found.train.arrays[0].shape == (60000, 1, 28, 28) and found.test.arrays[0].shape == (10000, 1, 28, 28)
    assert found.train.arrays[0].dtype == np.uint8 and found.train.arrays[0].flags.writeable
    assert found.train.arrays[0].mean() / 255 == pytest.approx(mean, abs=1e-4)
    assert found.train.arrays[1][:5].tolist() == first
    assert len(found.classes) == 10


def test_idx_files_may_be_plain_gzip_or_misnamed(mnist: Path) -> None:
    packed = load_dataset("mnist", offline=True)
    assert packed.train.arrays[1].tolist() == list(MNIST["train-labels-idx1-ubyte"][8:])
    assert packed.train.arrays[0].tobytes() == MNIST["train-images-idx3-ubyte"][16:]
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(MNIST["train-images-idx3-ubyte"])
    labels = mnist / "t10k-labels-idx1-ubyte"
    labels.with_suffix(".gz").unlink()
    labels.write_bytes(MNIST[labels.name])
    plain = load_dataset("mnist", offline=True)
    assert plain.fingerprint == packed.fingerprint and plain.train.arrays[0].flags.writeable


def test_cache_is_searched_after_the_users_folder(mnist: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "cache" / "hvdtrain" / "mnist", MNIST)
    (mnist / "train-labels-idx1-ubyte.gz").unlink()
    assert len(load_dataset("mnist", offline=True).train.arrays[1]) == 6


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (gzip.compress(MNIST["t10k-labels-idx1-ubyte"])[:-9], ["is truncated: its gzip data has no end"]),
        (
            gzip.compress(idx_bytes(np.full(3, 7))),
            ["is corrupt: its content has SHA-256", "expected", "published file"],
        ),
        (b"", ["is corrupt"]),
        (b"\x1f\x8b, but no gzip data", ["cannot be read"]),
        (gzip.compress(MNIST["t10k-labels-idx1-ubyte"]) + b"more", ["cannot be read"]),
    ],
    ids=["truncated", "other content", "empty", "no gzip", "extra bytes"],  # gzip data holds the time of day
)
def test_damaged_file_in_the_users_folder(mnist: Path, content: bytes, texts: list[str]) -> None:
    path = mnist / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(content)
    assert_rejected("mnist", str(path), *texts, "unset HVDTRAIN_DATA")


def test_damaged_file_in_the_cache(mnist: Path, tmp_path: Path) -> None:
    cached = write_files(tmp_path / "cache" / "hvdtrain" / "mnist", {"t10k-labels-idx1-ubyte": idx_bytes(np.ones(3))})
    (mnist / "t10k-labels-idx1-ubyte.gz").unlink()
    assert_rejected(
        "mnist", str(cached / "t10k-labels-idx1-ubyte.gz"), "is corrupt", "delete it, and it is downloaded again"
    )


def test_file_that_unpacks_to_more_than_memory(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MEMORY", 1000)
    assert_rejected("mnist", str(mnist / "train-images-idx3-ubyte.gz"), "more than this machine's memory")


def test_digits_are_enlarged_exactly() -> None:
    from sklearn.datasets import load_digits

    digits = load_dataset("digits")
    assert digits.train.arrays[0].shape == (1437, 1, 28, 28) and digits.test.arrays[0].shape == (360, 1, 28, 28)
    assert digits.train.arrays[0].dtype == np.uint8 and digits.test.arrays[1].dtype == np.int64
    assert digits.classes == tuple("0123456789")
    values, labels = load_digits(return_X_y=True)
    expected = np.kron(np.rint(values.reshape(-1, 8, 8) * 255 / 16), np.ones((3, 3)))
    expected = {
        (label, np.pad(image, 2).astype(np.uint8).tobytes()) for label, image in zip(labels, expected, strict=True)
    }
    images = np.concatenate([digits.train.arrays[0], digits.test.arrays[0]])
    labels = np.concatenate([digits.train.arrays[1], digits.test.arrays[1]])
    assert {(label, image.tobytes()) for label, image in zip(labels, images, strict=True)} == expected
    assert len(images) == 1797 and images.max() == 255
    counts = np.bincount(digits.test.arrays[1])
    assert counts.min() >= 34 and counts.max() <= 37


def test_digits_need_no_import_of_scikit_learn() -> None:
    """With SciPy it would add 0.6 s to the start of each rank."""
    program = "import sys; from hvdtrain.datasets.built_in import digits; digits(); print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"False\n"


def test_digits_without_scikit_learn_are_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="--data digits: scikit-learn is not installed; run: make setup"):
        load_dataset("digits")


def test_generated_bytes_never_change() -> None:
    """Checkpoints record these fingerprints, and ranks compare them."""
    assert load_dataset("digits").fingerprint.startswith("a47d6c770d844d39")
    assert load_dataset("synthetic").fingerprint.startswith("346b4ce2e2d73047")
    assert load_dataset("synthetic").fingerprint == load_dataset("synthetic", (1, 28, 28)).fingerprint
    assert load_dataset("synthetic").fingerprint != load_dataset("synthetic", (3, 32, 32)).fingerprint


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 5, 7)])
def test_synthetic_can_be_learned(shape: Shape) -> None:
    made = load_dataset("synthetic", shape)
    (images, labels), (test_images, test_labels) = made.train.arrays, made.test.arrays
    assert images.shape == (4096, *shape) and len(test_labels) == 1024 and made.input_shape == shape
    assert images.dtype == np.uint8 and made.classes == tuple("0123456789")
    for array in (*made.train.arrays, *made.test.arrays):
        assert array.flags.writeable and array.flags.c_contiguous
    means = np.stack([images[labels == label].mean(0) for label in range(10)])
    distance = ((test_images[:, np.newaxis] - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == test_labels).mean() > 0.95


def test_fingerprint_depends_on_every_bit() -> None:
    before = load_dataset("synthetic").fingerprint
    assert len(before) == 64 and before == load_dataset("synthetic").fingerprint
    made = load_dataset("synthetic")
    made.test.arrays[1][-1] ^= 1
    assert made.fingerprint != before
    (images, labels), test = load_dataset("synthetic").train.arrays, load_dataset("synthetic").test
    assert Dataset("synthetic", ArraySource(images.reshape(-1, 28, 28), labels), test, ()).fingerprint != before
