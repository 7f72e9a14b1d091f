"""Data sets by name. Arrays stay as small as their source; scaling and batches come later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hvdtrain.datasets.arrays import ArraySource
from hvdtrain.datasets.generated import digits, synthetic
from hvdtrain.datasets.own import load_own
from hvdtrain.datasets.published import PUBLISHED, load_published
from hvdtrain.datasets.validation import check_same_shape, valid_images, valid_labels
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.layers import Shape
from hvdtrain.system.text import did_you_mean

DIGITS = tuple("0123456789")
SYNTHETIC_SHAPE = (1, 28, 28)
"""Of synthetic images for networks that take any shape."""
NAMES = ("digits", "synthetic", *PUBLISHED)


def load_dataset(data: str, image_shape: Shape | None = None, offline: bool = False) -> Dataset:
    """The data set with this name, or the user's own at this path.

    image_shape: (channels, height, width) that the network takes, if it takes only one; synthetic images get it.
    offline: do not download. Raises UserError, which names the file or option, the problem and the remedy.
    """
    *arrays, names = _load(data, image_shape, offline)
    train, test = (f"--data {data}: {part}" for part in ("train", "test"))
    images, test_images = (valid_images(*one) for one in ((train, arrays[0]), (test, arrays[2])))
    check_same_shape(f"--data {data}", images, test_images)
    labels = valid_labels(train, arrays[1], len(images), len(names) or None)
    classes = names or tuple(map(str, range(labels.max() + 1)))
    test_labels = valid_labels(test, arrays[3], len(test_images), len(classes))
    return Dataset(data, ArraySource(images, labels), ArraySource(test_images, test_labels), classes)


def _load(data: str, image_shape: Shape | None, offline: bool) -> tuple[Any, ...]:
    """Four `Arrays`, and the names of the classes, empty if they are not known."""
    if data == "digits":
        return *digits(), DIGITS
    if data == "synthetic":
        return *synthetic(image_shape or SYNTHETIC_SHAPE), DIGITS
    if data in PUBLISHED:
        return *load_published(data, offline), PUBLISHED[data].classes
    path = Path(os.path.expanduser(data))
    if data and os.path.exists(path):
        return *load_own(path), ()
    hint = did_you_mean(data, NAMES)
    raise UserError(f"--data {data}: no such folder{hint}", f"give a folder, or one of {', '.join(NAMES)}")
