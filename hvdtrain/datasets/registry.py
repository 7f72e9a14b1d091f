"""Data sets by name, by path, or by a name in a Python file. Scaling and batches come later."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.datasets.arrays import ArraySource
from hvdtrain.datasets.generated import digits, synthetic
from hvdtrain.datasets.own import OwnArrays, load_own
from hvdtrain.datasets.published import PUBLISHED, load_published
from hvdtrain.datasets.sources.image_files import ImageSize
from hvdtrain.datasets.sources.labels import names_or_numbers
from hvdtrain.datasets.sources.python_objects import load_python
from hvdtrain.datasets.sources.rows import Found
from hvdtrain.datasets.validation import check_same_shape, valid_images, valid_labels
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
) -> Dataset:
    """The data set with this name, or the user's own at this path.

    image_shape: (channels, height, width) that the network takes, if it takes only one; synthetic images get it.
    offline: do not download. image_size: to which image files are resized (`Config.resized`). skip_bad_rows: replace
    rows that cannot be read (`RowSource`). name: of the data in messages, by default `data`. Raises UserError, which
    names the file or option, the problem and the remedy.
    """
    name = name or data
    if is_reference(data):
        found: Found | OwnArrays = load_python(name, data, skip_bad_rows)
        if image_size:
            raise UserError(f"--image-size: {name} makes the images", "resize them there")
    elif os.path.exists(path := Path(os.path.expanduser(data))) and data and data not in NAMES:
        found = load_own(name, path, skip_bad_rows, image_size)
    else:
        found = _load_arrays(name, data, image_shape, offline)
        if image_size:
            raise UserError(f"--image-size: {name} is not resized", "leave it out")
    train, test, classes = found if isinstance(found, Found) else _in_memory(name, found)
    dataset = Dataset(data, train, test, classes)
    check_same_shape(name, dataset)
    return dataset


def _in_memory(name: str, found: OwnArrays) -> Found:
    """The sources of arrays, which are all checked."""
    images, test_images = (
        valid_images(f"{name}: {part}", array)
        for part, array in (("train", found.arrays[0]), ("test", found.arrays[2]))
    )
    labels = valid_labels(f"{name}: train", found.arrays[1], len(images), len(found.classes) or None)
    classes = names_or_numbers(f"{name}: classes", found.classes, labels)
    test_labels = valid_labels(f"{name}: test", found.arrays[3], len(test_images), len(classes))
    return Found(ArraySource(images, labels), ArraySource(test_images, test_labels), classes)


def _load_arrays(name: str, data: str, image_shape: Shape | None, offline: bool) -> OwnArrays:
    """A data set by its name."""
    if data == "digits":
        return OwnArrays(digits(), DIGITS)
    if data == "synthetic":
        return OwnArrays(synthetic(image_shape or SYNTHETIC_SHAPE), DIGITS)
    if data in PUBLISHED:
        return OwnArrays(load_published(data, offline), PUBLISHED[data].classes)
    hint = did_you_mean(data, NAMES)
    raise UserError(f"{name}: no such folder{hint}", f"give a folder, or one of {', '.join(NAMES)}")
