"""Published data sets in the user's folder and in the cache."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from support.data_files import MNIST, assert_rejected, idx_bytes, write_files

from hvdtrain.datasets.formats import reading
from hvdtrain.datasets.registry import load_dataset


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
