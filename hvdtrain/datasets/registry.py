"""Data sets by name, by path, or by a name in a Python file. What is at a path decides how it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvdtrain.datasets.built_in import IDX_FILES, PUBLISHED, digits, find_file, load_published, synthetic
from hvdtrain.datasets.formats.array_files import HDF5_SUFFIXES, NPY_FILES, load_hdf5, load_npy
from hvdtrain.datasets.formats.image_files import ImageSize, load_image_folder
from hvdtrain.datasets.formats.in_memory import read_idx, read_npz
from hvdtrain.datasets.formats.python_objects import load_python
from hvdtrain.datasets.formats.reading import Arrays, Malformed, wrap_errors
from hvdtrain.datasets.formats.tar_shards import SHARD, load_tar_shards
from hvdtrain.datasets.rows import ArraySource, LoadedSources
from hvdtrain.datasets.validation import check_same_shape, names_or_numbers, valid_images, valid_labels
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.layers import Shape
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.text import did_you_mean

DIGITS = tuple("0123456789")
SYNTHETIC_SHAPE = (1, 28, 28)
"""Of synthetic images for networks that take any shape."""
NAMES = ("digits", "synthetic", *PUBLISHED)
FORMATS = (
    f"train.npz and test.npz with images and labels, one .npz file with x_train, y_train, x_test and y_test, IDX files "
    f"named as MNIST's ({IDX_FILES[0]}), {NPY_FILES[0]} and so on, folders train/CLASS and test/CLASS of images, "
    "an HDF5 file, or train-*.tar and test-*.tar"
)


class LoadedArrays(NamedTuple):
    """Data that is read into memory."""

    arrays: Arrays
    classes: tuple[str, ...] = ()
    """Names of the classes; empty if they are not known."""


def load_dataset(
    data: str,
    image_shape: Shape | None = None,
    offline: bool = False,
    image_size: ImageSize = None,
    skip_bad_rows: bool = False,
    name: str = "",
) -> Dataset:
    """The data set with this name, or the user's own at this path.

    image_shape: (channels, height, width) that the network takes, if it takes only one; synthetic images get it.
    offline: do not download. image_size: to which image files are resized (`Config.resized`). skip_bad_rows: replace
    rows that cannot be read (`RowSource`). name: of the data in messages, by default `data`. Raises UserError, which
    names the file or option, the problem and the remedy.
    """
    name = name or data
    if is_reference(data):
        loaded: LoadedSources | LoadedArrays = load_python(name, data, skip_bad_rows)
        if image_size:
            raise UserError(f"--image-size: {name} makes the images", "resize them there")
    elif os.path.exists(path := Path(os.path.expanduser(data))) and data and data not in NAMES:
        loaded = load_path(name, path, skip_bad_rows, image_size)
    else:
        loaded = _load_arrays(name, data, image_shape, offline)
        if image_size:
            raise UserError(f"--image-size: {name} is not resized", "leave it out")
    train, test, classes = loaded if isinstance(loaded, LoadedSources) else _in_memory(name, loaded)
    dataset = Dataset(data, train, test, classes)
    check_same_shape(name, dataset)
    return dataset


def _in_memory(name: str, loaded: LoadedArrays) -> LoadedSources:
    """The sources of arrays, which are all checked."""
    images, test_images = (
        valid_images(f"{name}: {part}", array)
        for part, array in (("train", loaded.arrays[0]), ("test", loaded.arrays[2]))
    )
    labels = valid_labels(f"{name}: train", loaded.arrays[1], len(images), len(loaded.classes) or None)
    classes = names_or_numbers(f"{name}: classes", loaded.classes, labels)
    test_labels = valid_labels(f"{name}: test", loaded.arrays[3], len(test_images), len(classes))
    return LoadedSources(ArraySource(images, labels), ArraySource(test_images, test_labels), classes)


def _load_arrays(name: str, data: str, image_shape: Shape | None, offline: bool) -> LoadedArrays:
    if data == "digits":
        return LoadedArrays(digits(), DIGITS)
    if data == "synthetic":
        return LoadedArrays(synthetic(image_shape or SYNTHETIC_SHAPE), DIGITS)
    if data in PUBLISHED:
        return LoadedArrays(load_published(data, offline), PUBLISHED[data].classes)
    hint = did_you_mean(data, NAMES)
    raise UserError(f"{name}: no such folder{hint}", f"give a folder, or one of {', '.join(NAMES)}")


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
