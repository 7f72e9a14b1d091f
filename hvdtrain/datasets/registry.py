"""Data sets by name, by path, or by a name in a Python file. The readers of files are loaded when data needs them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvdtrain.config.forms import Split
from hvdtrain.datasets.built_in import PUBLISHED, digits, load_published, synthetic
from hvdtrain.datasets.division import Division, labels_of
from hvdtrain.datasets.formats.reading import ImageSize
from hvdtrain.datasets.formats.tables import Columns, check_no_columns
from hvdtrain.datasets.rows import ArraySource, LoadedSources
from hvdtrain.datasets.validation import check_same_shape
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Source
from hvdtrain.networks.layers import Shape
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.text import did_you_mean

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
    as_images: bool = False,
) -> Dataset:
    """The data set with this name, or the user's own at this path.

    image_shape: (channels, height, width) that the network takes, if it takes only one; synthetic images get it.
    image_size: to which image files are resized (`Config.resized`). skip_bad_rows: replace rows that cannot be read
    (`CheckedRows`). name: of the data in messages, by default `data`. split: as --split; seed: decides which rows are
    in a part.
    label, columns: names of columns of a table, as --label and --columns. as_images: give rows of n numbers the shape
    (1, 1, n), as networks take it. Raises UserError, which names the file or option, the problem and the remedy.
    """
    name, chosen = name or data, Columns(label, tuple(columns))
    if is_reference(data):
        from hvdtrain.datasets.formats.python_objects import load_python

        loaded = load_python(name, data, skip_bad_rows, chosen)
        if image_size:
            raise UserError(f"--image-size: {name} makes the images", "resize them there")
    elif os.path.exists(path := Path(os.path.expanduser(data))) and data and data not in NAMES:
        from hvdtrain.datasets.paths import load_path

        loaded = load_path(name, path, skip_bad_rows, image_size, chosen)
    else:
        loaded = _built_in(name, data, image_shape)
        check_no_columns(name, chosen)
        if image_size:
            raise UserError(f"--image-size: {name} is not resized", "leave it out")
    labels = labels_of(loaded.train, 1)
    train, test, validated = Division(*Split.parse(str(split)), seed).of(name, loaded.train, loaded.test, labels)
    if as_images:
        if not loaded.classes:
            reason = f"{name}: its labels are numbers with fractions, and a network as data tells classes apart"
            raise UserError(reason, "write a task with a loss for them, or give --label a column of classes")
        train, test = map(_as_images, (train, test))
        validated = validated and _as_images(validated)
    dataset = Dataset(data, train, test, loaded.classes, validated)
    check_same_shape(name, dataset)
    return dataset


def _as_images(source: Source) -> Source:
    """Rows of n numbers in memory as images of 1 x 1 x n; others as they are."""
    if not isinstance(source, ArraySource) or source.arrays[0].ndim != 2:
        return source
    numbers, labels = source.arrays
    images = ArraySource(numbers[:, np.newaxis, np.newaxis], labels)
    images.advice, images.are_pixels = source.advice, False
    return images


def _built_in(name: str, data: str, image_shape: Shape | None) -> LoadedSources:
    if data == "digits":
        return LoadedSources.of_arrays(name, digits(), DIGITS)
    if data == "synthetic":
        return LoadedSources.of_arrays(name, synthetic(image_shape or SYNTHETIC_SHAPE), DIGITS)
    if data in PUBLISHED:
        return LoadedSources.of_arrays(name, load_published(data), PUBLISHED[data].classes)
    hint = did_you_mean(data, NAMES)
    raise UserError(f"{name}: no such folder{hint}", f"give a folder, or one of {', '.join(NAMES)}")
