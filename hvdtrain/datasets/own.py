"""The user's own data: a folder with .npz or IDX files, or one .npz file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hvdtrain.datasets.formats.idx import read_idx
from hvdtrain.datasets.formats.npz import read_npz
from hvdtrain.datasets.formats.reading import Arrays
from hvdtrain.datasets.published import IDX_FILES, find_file
from hvdtrain.errors import UserError


def load_own(path: Path) -> Arrays:
    """From train.npz and test.npz, from files named as MNIST's, or from one .npz in the form of Keras' MNIST.

    Raises UserError if the path has none of them, or one is damaged.
    """
    if any(os.path.exists(path / name) for name in ("train.npz", "test.npz")):
        train, test = (read_npz(path / name, ("images", "labels")) for name in ("train.npz", "test.npz"))
        return train + test
    found = [find_file([path], file) for file in IDX_FILES]
    if any(found):
        return tuple(_read_idx(path, file, at) for file, at in zip(IDX_FILES, found, strict=True))
    files = [path] if os.path.isfile(path) else sorted(path.glob("*.npz"))
    if len(files) == 1:
        return read_npz(files[0], ("x_train", "y_train", "x_test", "y_test"))
    raise UserError(
        f"--data {path}: holds {len(files)} .npz files",
        "give train.npz and test.npz with images and labels, or one file with x_train, y_train, x_test and y_test, "
        f"or IDX files named as MNIST's ({IDX_FILES[0]})",
    )


def _read_idx(folder: Path, file: str, path: Path | None) -> np.ndarray:
    if path is None:
        raise UserError(f"{folder / file}: missing, with .gz and without", "put it next to the other IDX files")
    return read_idx(path, "write it again, or remove it from the folder")
