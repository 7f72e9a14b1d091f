"""Data sets by name, by path, or by a name in a Python file. The readers of files are loaded when data needs them."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.datasets.built_in import IDX_FILES, PUBLISHED, digits, find_file, load_published, synthetic
from hvdtrain.datasets.division import Division
from hvdtrain.datasets.formats.in_memory import read_idx, read_npz
from hvdtrain.datasets.formats.npy_files import NPY_FILES, load_npy
from hvdtrain.datasets.formats.reading import (
    IMAGE_SUFFIXES,
    READABLE,
    VALIDATION_NAMES,
    ImageSize,
    Malformed,
    parts_beside,
    wrap_errors,
)
from hvdtrain.datasets.formats.table_files import TABLE_SUFFIXES
from hvdtrain.datasets.formats.tables import Columns, Scale, Target, check_no_columns, load_tables
from hvdtrain.datasets.rows import PARTS, ArraySource, LoadedSources
from hvdtrain.datasets.validation import check_same_shape
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Source
from hvdtrain.networks.layers import Shape
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.start_folder import from_start
from hvdtrain.system.text import did_you_mean, printable

DIGITS = tuple("0123456789")
SYNTHETIC_SHAPE = (1, 28, 28)
"""Of synthetic images for networks that take any shape."""
NAMES = ("digits", "synthetic", *PUBLISHED)


def load_dataset(
    data: str,
    image_shape: Shape | None = None,
    image_size: ImageSize = None,
    skip_bad_rows: bool = False,
    name: str = "",
    split: str | float = "",
    seed: int = 0,
    label: str = "",
    columns: Sequence[str] = (),
    target: Target = "auto",
    scale: Scale = "auto",
    weight: str = "",
    as_images: bool = False,
) -> Dataset:
    """The data set with this name, or the user's own at this path.

    image_shape: (channels, height, width) that the network takes, if it takes only one; synthetic images get it.
    image_size: to which image files are resized (`Config.resized`). skip_bad_rows: replace rows that cannot be read
    (`CheckedRows`). name: of the data in messages, by default `data`. split: as --split; seed: decides which rows are
    in a part.
    label, columns, target, scale, weight: of a table, as --label, --columns, --target, --scale and --weight-column.
    as_images: give rows of n numbers the shape (1, 1, n), as networks take it, for which "auto" may scale them. Raises
    UserError, which names the file or option, the problem and the remedy.
    """
    name, chosen = name or data, Columns(label, tuple(columns), target, scale, weight or None)
    loaded = _load(name, data, image_shape, image_size, skip_bad_rows, chosen)
    train, test, validated = map(loaded.parts.get, PARTS)
    assert train
    labels = train.labels(1)
    division = Division.by(Config(split=str(split), seed=seed))
    train, test, validated = division.of(name, train, test, labels, validation=validated)
    table: dict[str, Any] = {}
    if loaded.encode:
        (train, test, validated), table = loaded.encode((train, test, validated), as_images)
    if as_images:
        train, test = map(_as_images, (train, test))
        validated = validated and _as_images(validated)
    dataset = Dataset(data, train, test, loaded.classes, validated, table)
    check_same_shape(name, dataset)
    return dataset


def _load(
    name: str, data: str, image_shape: Shape | None, image_size: ImageSize, skip: bool, columns: Columns
) -> LoadedSources:
    """The data as its format has it; see `load_dataset`."""
    path = Path(os.path.expanduser(data))
    kind = _format(name, data, path)
    if image_size and kind != "images":
        raise UserError(f"--image-size: {name} holds no image files, and is not resized", "leave it out")
    if kind == "python":
        from hvdtrain.datasets.formats.python_objects import load_python

        return load_python(name, data, skip, columns)
    if kind == "table":
        return load_tables(name, _tables(path), columns, skip)
    check_no_columns(name, columns)
    if kind == "images":
        from hvdtrain.datasets.formats.image_files import load_image_folder

        return load_image_folder(name, path, skip, image_size)
    if kind == "npy":
        return load_npy(name, path, skip)
    if kind == "idx":
        return LoadedSources.of_arrays(name, tuple(_read_idx(path, file) for file in IDX_FILES))
    return _load_npz(name, path) if kind == "npz" else _built_in(name, data, image_shape)


def _as_images(source: Source) -> Source:
    """Rows of n numbers in memory as images of 1 x 1 x n; others as they are."""
    if not isinstance(source, ArraySource) or source.arrays[0].ndim != 2:
        return source
    numbers, *others = source.arrays
    return source.with_arrays(numbers[:, np.newaxis, np.newaxis], *others)


def _built_in(name: str, data: str, image_shape: Shape | None) -> LoadedSources:
    if data == "digits":
        return LoadedSources.of_arrays(name, digits(), DIGITS)
    if data == "synthetic":
        return LoadedSources.of_arrays(name, synthetic(image_shape or SYNTHETIC_SHAPE), DIGITS)
    return LoadedSources.of_arrays(name, load_published(data), PUBLISHED[data].classes)


# Data at a path: what is there decides how it is read.

MAX_LISTED, MAX_COMPARED = 3, 1000
"""Of the names in a folder, in a message, and with one that is not there."""
FORMATS = (
    f"train.npz and test.npz with images and labels, one .npz file with x_train, y_train, x_test and y_test, IDX files "
    f"named as MNIST's ({IDX_FILES[0]}), {NPY_FILES[0]} and so on, folders CLASS, or train/CLASS and test/CLASS, of "
    f"images, a table ({', '.join(TABLE_SUFFIXES)}) or two that are called train and test, and beside train and test "
    f"validation rows ({', '.join(VALIDATION_NAMES)}); for other data, write a function that reads it, and give --data "
    "FILE.py:NAME (docs/data.md)"
)


def _format(name: str, data: str, path: Path) -> str:
    """What data is: `python`, `built-in`, or what its path holds. Raises UserError for none of these, or several."""
    if data in NAMES:
        return "built-in"
    if is_reference(data):
        path = from_start(str(path).rpartition(":")[0])
    if not data or not os.path.exists(path):
        raise _not_there(name, path)
    if is_reference(data):
        return "python"
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
    if _tables(path):
        return "table"
    if any(map(_holds_images, path.iterdir())):
        return "images"
    shown = sorted(file for file in names if not file.startswith("."))
    listed = printable(", ".join(shown[:MAX_LISTED])) + ", ..." * (len(shown) > MAX_LISTED)
    raise UserError(f"{name}: holds no data of a known format ({listed or 'it is empty'})", f"give {FORMATS}")


def _not_there(name: str, path: Path) -> UserError:
    known = [*NAMES]
    with contextlib.suppress(OSError, ValueError):
        known += os.listdir(path.parent)[:MAX_COMPARED]
    hint = printable(did_you_mean(path.name, known))
    return UserError(f"{name}: no such file or folder{hint}", f"give a path, or one of {', '.join(NAMES)}")


def _format_of_file(name: str, path: Path) -> str:
    """`table` or `npz`. Raises UserError for a file that is neither."""
    if path.suffix.lower() in TABLE_SUFFIXES:
        return "table"
    if path.suffix != ".npz" and not zipfile.is_zipfile(path):
        kind = f"a {path.suffix} file" if path.suffix else "a file of another format"
        raise UserError(f"{name}: is {printable(kind)}, which is not read", f"give {FORMATS}")
    return "npz"


def _tables(path: Path) -> list[Path]:
    """The tables at a path: one, or training, test and validation rows; none where their names do not tell."""
    if path.is_file():
        return [path]
    found = [file for file in path.iterdir() if file.suffix.lower() in TABLE_SUFFIXES and file.name[0] != "."]
    by_name = {file.stem: file for file in found}
    if len(found) < 2 or len(by_name) < len(found):
        return found[:1]
    parts = ["train", *parts_beside(by_name, path)]
    return [by_name[part] for part in parts] if by_name.keys() == {*parts} else []


def _holds_images(path: Path) -> bool:
    if path.name[0] == "." or not path.is_dir():
        return False
    try:
        return any(file.lower().endswith(IMAGE_SUFFIXES) for file in os.listdir(path))
    except OSError:
        return False


def _load_npz(name: str, path: Path) -> LoadedSources:
    if path.is_dir() and any(os.path.exists(path / name) for name in ("train.npz", "test.npz")):
        parts = ("train", *(parts_beside({file.stem for file in path.glob("*.npz")}, path) or ["test"]))
        files = [(path / f"{part}.npz", ["images", "labels"]) for part in parts]
    else:
        file = path if path.is_file() else next(file for file in sorted(path.glob("*.npz")) if file.name[0] != ".")
        with wrap_errors(file, "save numeric arrays there with numpy.savez"), np.load(file, allow_pickle=False) as held:
            beside = parts_beside({key[2:] for key in held.files if key.startswith("x_")}, file)
        files = [(file, [f"{kind}_{part}" for part in ("train", *(beside or ["test"])) for kind in "xy"])]
    arrays, first = tuple(array for file, names in files for array in read_npz(file, names)), files[0][0]
    names = read_npz(first, ("classes",), missing=True)
    if not names:
        return LoadedSources.of_arrays(name, arrays)
    with wrap_errors(first, "save classes as strings, one for each class"):
        if names[0].dtype.kind != "U" or names[0].ndim != 1:
            raise Malformed(f"holds classes of type {names[0].dtype} and shape {names[0].shape}")
    return LoadedSources.of_arrays(name, arrays, tuple(names[0].tolist()))


def _read_idx(folder: Path, file: str) -> np.ndarray:
    path = find_file([folder], file)
    if path is None:
        raise UserError(f"{folder / file}: missing, with .gz and without", "put it next to the other IDX files")
    return read_idx(path, "write it again, or remove it from the folder")
