"""The user's own data: what is at a path decides how it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvdtrain.datasets.formats.idx import read_idx
from hvdtrain.datasets.formats.npz import read_npz
from hvdtrain.datasets.formats.reading import Arrays, Malformed, wrap_errors
from hvdtrain.datasets.published import IDX_FILES, find_file
from hvdtrain.datasets.sources import hdf5, image_files, npy_files, tar_shards
from hvdtrain.datasets.sources.image_files import ImageSize
from hvdtrain.datasets.sources.rows import Found
from hvdtrain.errors import UserError

FORMATS = (
    f"train.npz and test.npz with images and labels, one .npz file with x_train, y_train, x_test and y_test, IDX files "
    f"named as MNIST's ({IDX_FILES[0]}), {npy_files.FILES[0]} and so on, folders train/CLASS and test/CLASS of images, "
    "an HDF5 file, or train-*.tar and test-*.tar"
)


class OwnArrays(NamedTuple):
    """Data that is read into memory."""

    arrays: Arrays
    classes: tuple[str, ...] = ()
    """Names of the classes; empty if they are not known."""


def load_own(name: str, path: Path, skip: bool = False, resized: ImageSize = None) -> Found | OwnArrays:
    """The data at a path, in one of FORMATS.

    name: of the data in messages. skip, resized: see `RowSource` and `ImageRows`. Raises UserError if the path has none
    of the formats, or several, or a file is damaged.
    """
    kind = _format(name, path)
    if resized and kind not in ("images", "tar"):
        raise UserError(f"--image-size: {name} holds arrays, which are not resized", "leave it out")
    if kind == "images":
        return image_files.load_image_folder(name, path, skip, resized)
    if kind == "tar":
        return tar_shards.load_tar_shards(name, path, skip, resized)
    if kind == "npy":
        return npy_files.load_npy(name, path, skip)
    if kind == "hdf5":
        return hdf5.load_hdf5(name, path if path.is_file() else next(_named(path, hdf5.SUFFIXES)), skip)
    if kind == "idx":
        found = [find_file([path], file) for file in IDX_FILES]
        return OwnArrays(tuple(_read_idx(path, file, at) for file, at in zip(IDX_FILES, found, strict=True)))
    return _load_npz(path)


def _format(name: str, path: Path) -> str:
    """What a path holds: `images`, `tar`, `npy`, `hdf5`, `idx` or `npz`."""
    if path.is_file():
        return "hdf5" if path.suffix in hdf5.SUFFIXES else "npz"
    with wrap_errors(path, "check the path and its permissions"):
        names = os.listdir(path)
    archives = [one for one in names if one.endswith(".npz") and not one.startswith(".")]
    found = {
        "npz": {"train.npz", "test.npz"} & set(names) or len(archives) == 1,
        "idx": any(find_file([path], file) for file in IDX_FILES),
        "npy": set(npy_files.FILES) & set(names),
        "images": (path / "train").is_dir(),
        "hdf5": len(list(_named(path, hdf5.SUFFIXES))) == 1,
        "tar": any(map(tar_shards.SHARD.fullmatch, names)),
    }
    kinds = [kind for kind, there in found.items() if there]
    if len(kinds) > 1:
        raise UserError(f"{name}: holds data in several formats ({', '.join(kinds)})", "leave one of them there")
    if not kinds:
        raise UserError(f"{name}: holds {len(archives)} .npz files, and no other data", f"give {FORMATS}")
    return kinds[0]


def _named(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.suffix in suffixes)


def _load_npz(path: Path) -> OwnArrays:
    if path.is_dir() and any(os.path.exists(path / name) for name in ("train.npz", "test.npz")):
        files = [(path / name, ["images", "labels"]) for name in ("train.npz", "test.npz")]
    else:
        file = path if path.is_file() else next(one for one in sorted(path.glob("*.npz")) if one.name[0] != ".")
        files = [(file, ["x_train", "y_train", "x_test", "y_test"])]
    arrays = tuple(array for file, names in files for array in read_npz(file, names))
    names = read_npz(files[0][0], ("classes",), missing=True)
    if not names:
        return OwnArrays(arrays)
    with wrap_errors(files[0][0], "save classes as strings, one for each class"):
        if names[0].dtype.kind != "U" or names[0].ndim != 1:
            raise Malformed(f"holds classes of type {names[0].dtype} and shape {names[0].shape}")
    return OwnArrays(arrays, tuple(names[0].tolist()))


def _read_idx(folder: Path, file: str, path: Path | None) -> np.ndarray:
    if path is None:
        raise UserError(f"{folder / file}: missing, with .gz and without", "put it next to the other IDX files")
    return read_idx(path, "write it again, or remove it from the folder")
