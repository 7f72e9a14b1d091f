"""CIFAR-10 from its archive and from extracted files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.data_files import (
    CIFAR,
    assert_rejected,
    cifar_archive,
    cifar_records,
    write_files,
)

from hvdtrain.datasets.formats import in_memory
from hvdtrain.datasets.registry import load_dataset


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
