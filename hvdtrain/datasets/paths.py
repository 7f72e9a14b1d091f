"""Data at a path: what is there decides how it is read."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from hvdtrain.datasets.built_in import IDX_FILES, find_file
from hvdtrain.datasets.formats.image_files import SUFFIXES, load_class_folders, load_image_folder
from hvdtrain.datasets.formats.in_memory import read_idx, read_npz
from hvdtrain.datasets.formats.npy_files import NPY_FILES, load_npy
from hvdtrain.datasets.formats.reading import READABLE, ImageSize, Malformed, wrap_errors
from hvdtrain.datasets.formats.tables import NO_COLUMNS, TABLE_SUFFIXES, Columns, check_no_columns, load_tables
from hvdtrain.datasets.rows import LoadedSources
from hvdtrain.errors import UserError
from hvdtrain.system.text import printable

MAX_LISTED = 3
"""Of the names in a folder, in a message."""
FORMATS = (
    f"train.npz and test.npz with images and labels, one .npz file with x_train, y_train, x_test and y_test, IDX files "
    f"named as MNIST's ({IDX_FILES[0]}), {NPY_FILES[0]} and so on, folders CLASS, or train/CLASS and test/CLASS, of "
    f"images, a table of numbers ({', '.join(TABLE_SUFFIXES)}) or two that are called train and test; for other data, "
    "write a function that reads it, and give --data FILE.py:NAME (docs/data.md)"
)


def load_path(
    name: str, path: Path, skip: bool = False, resized: ImageSize = None, columns: Columns = NO_COLUMNS
) -> LoadedSources:
    """The data at a path, in one of FORMATS.

    name: of the data in messages. skip, resized: see `CheckedRows` and `ImageFolder`. columns: of a table. Raises
    UserError if the path has none of the formats, or several, or a file is damaged.
    """
    kind = _format(name, path)
    if kind != "table":
        check_no_columns(name, columns)
    if kind == "classes":
        return load_class_folders(name, path, skip, resized)
    if kind == "images":
        return load_image_folder(name, path, skip, resized)
    if resized:
        raise UserError(f"--image-size: {name} holds arrays, which are not resized", "leave it out")
    if kind == "table":
        return load_tables(name, _tables(path), columns, skip)
    if kind == "npy":
        return load_npy(name, path, skip)
    if kind == "idx":
        return LoadedSources.of_arrays(name, tuple(_read_idx(path, file) for file in IDX_FILES))
    return _load_npz(name, path)


def _format(name: str, path: Path) -> str:
    """What a path holds: `images`, `classes`, `table`, `npy`, `idx` or `npz`."""
    if path.is_file():
        return _format_of_file(name, path)
    with wrap_errors(path, READABLE):
        names = os.listdir(path)
    archives = [file for file in names if file.endswith(".npz") and not file.startswith(".")]
    is_there = {
        "npz": {"train.npz", "test.npz"} & set(names) or len(archives) == 1,
        "idx": any(find_file([path], file) for file in IDX_FILES),
        "npy": set(NPY_FILES) & set(names),
        "images": (path / "train").is_dir(),
    }
    kinds = [kind for kind, there in is_there.items() if there]
    if len(kinds) > 1:
        raise UserError(f"{name}: holds data in several formats ({', '.join(kinds)})", "leave one of them there")
    if kinds:  # a table next to it describes it
        return kinds[0]
    if len(tables := _tables(path)) == 1 or [file.stem for file in tables] == ["train", "test"]:
        return "table"
    if any(map(_holds_images, path.iterdir())):
        return "classes"
    shown = sorted(file for file in names if not file.startswith("."))
    listed = printable(", ".join(shown[:MAX_LISTED])) + ", ..." * (len(shown) > MAX_LISTED)
    raise UserError(f"{name}: holds no data of a known format ({listed or 'it is empty'})", f"give {FORMATS}")


def _format_of_file(name: str, path: Path) -> str:
    """`table` or `npz`. Raises UserError for a file that is neither."""
    if path.suffix.lower() in TABLE_SUFFIXES:
        return "table"
    if path.suffix != ".npz" and not zipfile.is_zipfile(path):
        kind = f"a {path.suffix} file" if path.suffix else "a file of another format"
        raise UserError(f"{name}: is {printable(kind)}, which is not read", f"give {FORMATS}")
    return "npz"


def _tables(path: Path) -> list[Path]:
    """The tables at a path: training rows before test rows."""
    if path.is_file():
        return [path]
    found = [file for file in path.iterdir() if file.suffix.lower() in TABLE_SUFFIXES and file.name[0] != "."]
    return sorted(found, key=lambda file: (file.stem != "train", file.name))


def _holds_images(path: Path) -> bool:
    if path.name[0] == "." or not path.is_dir():
        return False
    try:
        return any(file.lower().endswith(SUFFIXES) for file in os.listdir(path))
    except OSError:
        return False


def _load_npz(name: str, path: Path) -> LoadedSources:
    if path.is_dir() and any(os.path.exists(path / name) for name in ("train.npz", "test.npz")):
        files = [(path / name, ["images", "labels"]) for name in ("train.npz", "test.npz")]
    else:
        file = path if path.is_file() else next(file for file in sorted(path.glob("*.npz")) if file.name[0] != ".")
        files = [(file, ["x_train", "y_train", "x_test", "y_test"])]
    arrays = tuple(array for file, names in files for array in read_npz(file, names))
    names = read_npz(files[0][0], ("classes",), missing=True)
    if not names:
        return LoadedSources.of_arrays(name, arrays)
    with wrap_errors(files[0][0], "save classes as strings, one for each class"):
        if names[0].dtype.kind != "U" or names[0].ndim != 1:
            raise Malformed(f"holds classes of type {names[0].dtype} and shape {names[0].shape}")
    return LoadedSources.of_arrays(name, arrays, tuple(names[0].tolist()))


def _read_idx(folder: Path, file: str) -> np.ndarray:
    path = find_file([folder], file)
    if path is None:
        raise UserError(f"{folder / file}: missing, with .gz and without", "put it next to the other IDX files")
    return read_idx(path, "write it again, or remove it from the folder")
