"""Data at a path: what is there decides how it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hvdtrain.datasets.built_in import IDX_FILES, find_file
from hvdtrain.datasets.formats.array_files import HDF5_SUFFIXES, NPY_FILES, load_hdf5, load_npy
from hvdtrain.datasets.formats.image_files import load_image_folder
from hvdtrain.datasets.formats.in_memory import read_idx, read_npz
from hvdtrain.datasets.formats.reading import ImageSize, Malformed, wrap_errors
from hvdtrain.datasets.formats.tar_shards import SHARD, load_tar_shards
from hvdtrain.datasets.rows import LoadedArrays, LoadedSources
from hvdtrain.errors import UserError

FORMATS = (
    f"train.npz and test.npz with images and labels, one .npz file with x_train, y_train, x_test and y_test, IDX files "
    f"named as MNIST's ({IDX_FILES[0]}), {NPY_FILES[0]} and so on, folders train/CLASS and test/CLASS of images, "
    "an HDF5 file, or train-*.tar and test-*.tar"
)


def load_path(name: str, path: Path, skip: bool = False, resized: ImageSize = None) -> LoadedSources | LoadedArrays:
    """The data at a path, in one of FORMATS.

    name: of the data in messages. skip, resized: see `RowSource` and `ImageRows`. Raises UserError if the path has none
    of the formats, or several, or a file is damaged.
    """
    kind = _format(name, path)
    if resized and kind not in ("images", "tar"):
        raise UserError(f"--image-size: {name} holds arrays, which are not resized", "leave it out")
    if kind == "images":
        return load_image_folder(name, path, skip, resized)
    if kind == "tar":
        return load_tar_shards(name, path, skip, resized)
    if kind == "npy":
        return load_npy(name, path, skip)
    if kind == "hdf5":
        return load_hdf5(name, path if path.is_file() else next(_named(path, HDF5_SUFFIXES)), skip)
    if kind == "idx":
        return LoadedArrays(tuple(_read_idx(path, file) for file in IDX_FILES))
    return _load_npz(path)


def _format(name: str, path: Path) -> str:
    """What a path holds: `images`, `tar`, `npy`, `hdf5`, `idx` or `npz`."""
    if path.is_file():
        return "hdf5" if path.suffix in HDF5_SUFFIXES else "npz"
    with wrap_errors(path, "check the path and its permissions"):
        names = os.listdir(path)
    archives = [file for file in names if file.endswith(".npz") and not file.startswith(".")]
    is_there = {
        "npz": {"train.npz", "test.npz"} & set(names) or len(archives) == 1,
        "idx": any(find_file([path], file) for file in IDX_FILES),
        "npy": set(NPY_FILES) & set(names),
        "images": (path / "train").is_dir(),
        "hdf5": len(list(_named(path, HDF5_SUFFIXES))) == 1,
        "tar": any(map(SHARD.fullmatch, names)),
    }
    kinds = [kind for kind, there in is_there.items() if there]
    if len(kinds) > 1:
        raise UserError(f"{name}: holds data in several formats ({', '.join(kinds)})", "leave one of them there")
    if not kinds:
        raise UserError(f"{name}: holds {len(archives)} .npz files, and no other data", f"give {FORMATS}")
    return kinds[0]


def _named(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.suffix in suffixes)


def _load_npz(path: Path) -> LoadedArrays:
    if path.is_dir() and any(os.path.exists(path / name) for name in ("train.npz", "test.npz")):
        files = [(path / name, ["images", "labels"]) for name in ("train.npz", "test.npz")]
    else:
        file = path if path.is_file() else next(file for file in sorted(path.glob("*.npz")) if file.name[0] != ".")
        files = [(file, ["x_train", "y_train", "x_test", "y_test"])]
    arrays = tuple(array for file, names in files for array in read_npz(file, names))
    names = read_npz(files[0][0], ("classes",), missing=True)
    if not names:
        return LoadedArrays(arrays)
    with wrap_errors(files[0][0], "save classes as strings, one for each class"):
        if names[0].dtype.kind != "U" or names[0].ndim != 1:
            raise Malformed(f"holds classes of type {names[0].dtype} and shape {names[0].shape}")
    return LoadedArrays(arrays, tuple(names[0].tolist()))


def _read_idx(folder: Path, file: str) -> np.ndarray:
    path = find_file([folder], file)
    if path is None:
        raise UserError(f"{folder / file}: missing, with .gz and without", "put it next to the other IDX files")
    return read_idx(path, "write it again, or remove it from the folder")
