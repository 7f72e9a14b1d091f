"""Data sets by name. Arrays stay as small as their source; scaling and batches come later."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.datasets.formats.reading import Arrays
from hvdtrain.datasets.generated import digits, synthetic
from hvdtrain.datasets.own import load_own
from hvdtrain.datasets.published import PUBLISHED, load_published
from hvdtrain.datasets.validation import valid_images, valid_labels
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.description import Network
from hvdtrain.system.text import did_you_mean

NAMES = ("digits", "synthetic", *PUBLISHED)


def load_dataset(data: str, network: Network, offline: bool = False) -> Dataset:
    """The data set with this name, or the user's own at this path, validated for the network.

    offline: do not download. Raises UserError, which names the file or option, the problem and the remedy.
    """
    train_images, train_labels, test_images, test_labels = _load(data, network, offline)
    classes = PUBLISHED[data].classes if data in PUBLISHED else tuple(map(str, range(network.classes)))
    train, test = f"--data {data}: train", f"--data {data}: test"
    return Dataset(
        data,
        valid_images(train, train_images, network),
        valid_labels(train, train_labels, len(train_images), network.classes),
        valid_images(test, test_images, network),
        valid_labels(test, test_labels, len(test_images), network.classes),
        classes,
    )


def _load(data: str, network: Network, offline: bool) -> Arrays:
    if data == "digits":
        return digits()
    if data == "synthetic":
        return synthetic(network)
    if data in PUBLISHED:
        return load_published(data, offline)
    path = Path(os.path.expanduser(data))
    if data and os.path.exists(path):
        return load_own(path)
    hint = did_you_mean(data, NAMES)
    raise UserError(f"--data {data}: no such folder{hint}", f"give a folder, or one of {', '.join(NAMES)}")
