"""Tar shards: what is wrong with them is found before training, and their index is made once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from support.row_data import png, rejected, write_shard, write_tar

from hvdtrain.datasets.formats import tar_shards
from hvdtrain.datasets.registry import load_dataset

ROW = {"1.png": png(np.zeros((5, 4), np.uint8)), "1.cls": b"0"}


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"1.png": ROW["1.png"]}, "has 1 images and 0 .cls files of 1"),
        ({"1.cls": b"0"}, "has 0 images and 1 .cls files of 1"),
        ({**ROW, "1.jpg": b""}, "has 2 images and 1 .cls files of 1"),
        ({"1.cls": b"0", "2.cls": b"0", "1.png": b"", "2.png": b""}, "has 0 images and 1 .cls files of 1"),
        ({**ROW, "1.cls": b"ape"}, "has the label 'ape' in 1.cls"),
        ({**ROW, "1.cls": b"3"}, "the label of row 0 is 3; the data has 3 classes"),
        ({**ROW, "1.png": b"no image"}, "train-000000.tar: 1 (row 0): cannot be read"),
        ({"1.npy": b"\x93NUMPY", "1.cls": b"0"}, "train-000000.tar: 1 (row 0): cannot be read"),
        ({}, "holds no rows"),
    ],
)
def test_shard_with_incomplete_rows(tmp_path: Path, members: dict[str, bytes], text: str) -> None:
    folder = write_tar(tmp_path / "data")
    write_shard(folder / "train-000000.tar", members)
    rejected(folder, str(folder / "train-000000.tar"), text)


@pytest.mark.parametrize("length", [0, 100, 600, 1024, 5000, -10240])
def test_shard_that_is_cut(tmp_path: Path, length: int) -> None:
    """At any place, also in a header and between two members."""
    path = write_tar(tmp_path / "data") / "train-000001.tar"
    path.write_bytes(path.read_bytes()[:length])
    assert re.search(r"is truncated or damaged at byte|cannot be read", str(rejected(tmp_path / "data", str(path))))


def test_shards_of_one_part_only(tmp_path: Path) -> None:
    folder = write_tar(tmp_path / "data")
    for path in folder.glob("test-*"):
        path.unlink()
    rejected(folder, "no shards of the other part")


def test_index_is_made_once_and_again_for_a_shard_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, scanned = write_tar(tmp_path / "data"), []
    scan = tar_shards._scan
    monkeypatch.setattr(tar_shards, "_scan", lambda shard: scanned.append(shard.path.name) or scan(shard))

    def load() -> list[str]:
        scanned.clear()
        dataset = load_dataset(str(folder))
        dataset.train[np.arange(len(dataset.train))]
        return scanned

    assert len(load()) == 5 and load() == []
    os.utime(folder / "train-000001.tar", (1, 1))
    assert load() == ["train-000001.tar"] and load() == []
    (folder / tar_shards.INDEX).write_bytes(b"PK damaged")
    assert len(load()) == 5
    (folder / tar_shards.INDEX).unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert len(load()) == 5 and load() == []
    assert not (folder / tar_shards.INDEX).exists() and list((tmp_path / "cache").rglob("*.npz"))
