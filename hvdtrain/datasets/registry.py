"""Data sets by name, by path, or by a name in a Python file. The readers of files are loaded when data needs them."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.datasets.built_in import PUBLISHED, digits, load_published, synthetic
from hvdtrain.datasets.formats.reading import ImageSize
from hvdtrain.datasets.holdout import NOTHING, HoldOut
from hvdtrain.datasets.rows import ArraySource, LoadedArrays, LoadedSources
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


def load_dataset(
    data: str,
    image_shape: Shape | None = None,
    offline: bool = False,
    image_size: ImageSize = None,
    skip_bad_rows: bool = False,
    name: str = "",
    hold_out: tuple[float, int] = NOTHING,
) -> Dataset:
    """The data set with this name, or the user's own at this path.

    image_shape: (channels, height, width) that the network takes, if it takes only one; synthetic images get it.
    offline: do not download. image_size: to which image files are resized (`Config.resized`). skip_bad_rows: replace
    rows that cannot be read (`RowSource`). name: of the data in messages, by default `data`. hold_out: share of the
    training rows that are validation rows, and the seed by which they are chosen. Raises UserError, which names the
    file or option, the problem and the remedy.
    """
    name = name or data
    if is_reference(data):
        from hvdtrain.datasets.formats.python_objects import load_python

        loaded: LoadedSources | LoadedArrays = load_python(name, data, skip_bad_rows)
        if image_size:
            raise UserError(f"--image-size: {name} makes the images", "resize them there")
    elif os.path.exists(path := Path(os.path.expanduser(data))) and data and data not in NAMES:
        from hvdtrain.datasets.paths import load_path

        loaded = load_path(name, path, skip_bad_rows, image_size)
    else:
        loaded = _load_arrays(name, data, image_shape, offline)
        if image_size:
            raise UserError(f"--image-size: {name} is not resized", "leave it out")
    train, test, classes = loaded if isinstance(loaded, LoadedSources) else _in_memory(name, loaded)
    check_same_shape(name, Dataset(data, train, test, classes))
    held_out = HoldOut(*hold_out)
    if not held_out.share:
        return Dataset(data, train, test, classes)
    train, validation = held_out.of(name, train, 1)
    return Dataset(data, train, test, classes, validation)


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
