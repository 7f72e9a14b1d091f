"""Checks that images and labels fit the network, and brings them into the form of `Dataset`.

What fits but is probably a mistake is a warning.
"""

from __future__ import annotations

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.description import Network
from hvdtrain.networks.registry import NETWORKS

DARK = 0.1
"""Images whose brightest pixel is below this share of the full range are probably scaled wrongly."""


def valid_images(where: str, images: np.ndarray, network: Network) -> np.ndarray:
    """Images as `Dataset` has them, from (n, height, width) or with channels first or last, uint8 or floats.

    where: names the data in messages. Raises UserError if they do not fit the network.
    """
    if images.ndim not in (3, 4) or len(images) == 0:
        shape = "(n, height, width) or (n, channels, height, width)"
        raise UserError(f"{where} images have shape {images.shape}", f"give {shape}, n at least 1")
    if images.ndim == 3:
        images = images[:, np.newaxis]
    elif images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1:] != network.input_shape:
        raise _wrong_shape(where, images.shape[1:], network)
    if images.dtype.kind == "f":
        low, high = images.min(), images.max()
        if not (low >= 0 and high <= 1):  # written so that NaN is caught
            bytes_ = ": divide them by 255, or store them as uint8" if low >= 0 and high <= 255 else ""
            raise UserError(f"{where} images are floats from {low:g} to {high:g}", f"scale them to [0, 1]{bytes_}")
        images = images.astype(np.float32, copy=False)
    elif images.dtype != np.uint8:
        raise UserError(f"{where} images are of type {images.dtype}", "give uint8, or floats in [0, 1]")
    return np.ascontiguousarray(images)


def _wrong_shape(where: str, shape: tuple[int, ...], network: Network) -> UserError:
    """Images of this shape, (channels, height, width), are not the network's; names one that accepts them."""
    name = next((name for name, known in NETWORKS.items() if known == network), "the network")
    other = next((name for name, known in NETWORKS.items() if known.input_shape == shape), "")
    found, expected = ("x".join(map(str, lengths)) for lengths in (shape, network.input_shape))
    return UserError(
        f"{where} images are {found} but {name} takes {expected}",
        f"use --model {other}" if other else "resize them to that shape",
    )


def valid_labels(where: str, labels: np.ndarray, images: int, classes: int) -> np.ndarray:
    """Labels as `Dataset` has them, from any integers, for that number of images and classes.

    where: names the data in messages. Raises UserError if they do not fit.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        found = f"of type {labels.dtype} and shape {labels.shape}"
        raise UserError(f"{where} labels are {found}", "give integers of shape (n,)")
    if len(labels) != images:
        raise UserError(f"{where} labels are {len(labels)} for {images} images", "give each image one label")
    if labels.min() < 0 or labels.max() >= classes:
        low, high = int(labels.min()), int(labels.max())
        if low > 0 and high <= classes:
            remedy = "subtract 1 from them"
        elif low >= 0:
            remedy = f"correct them, or {_other_network(high + 1)}"
        else:
            remedy = "correct them"
        reason = f"{where} labels run from {low} to {high}"
        raise UserError(reason, f"the network has {classes} classes, 0 to {classes - 1}: {remedy}")
    return np.ascontiguousarray(labels, np.int64)


def _other_network(classes: int) -> str:
    return f"add a network with {classes} classes to hvdtrain/networks/registry.py (docs/reference.md, section Data)"


def suspicious(dataset: Dataset) -> list[str]:
    """What is probably wrong with data that fits the network: each problem with its remedy, in one sentence."""
    of_images = _dark("train", dataset.train_images) or _dark("test", dataset.test_images)
    return [f"--data {dataset.name}: {problem}" for problem in (of_images, *_labels(dataset)) if problem]


def _dark(part: str, images: np.ndarray) -> str:
    """The problem of images without contrast; empty if they have enough."""
    low, high = images.min(), images.max()
    if low == high:
        return f"all pixels of the {part} images are {high:g}, so there is nothing to see; check how they were made"
    if images.dtype == np.uint8 and high < DARK * 255:
        remedy = f"multiply them by {255 // high}, or store them as float32 in [0, 1]"
        problem = f"no pixel of the {part} images exceeds {high}, and uint8 is divided by 255, so they are almost black"
        return f"{problem}; {remedy}"
    if images.dtype != np.uint8 and high < DARK:
        return f"no pixel of the {part} images exceeds {high:.2g}, so they are almost black; scale them to [0, 1] once"
    return ""


def _labels(dataset: Dataset) -> tuple[str, ...]:
    """The problems of labels that miss classes."""
    known, tested = set(np.unique(dataset.train_labels)), set(np.unique(dataset.test_labels))
    classes = len(dataset.classes)
    problems = []
    if len(known) == 1:
        problems.append(f"all train labels are {min(known)}, so there is nothing to tell apart; check the labels")
    elif len(known) < classes:
        problems.append(
            f"the train labels have {len(known)} of the network's {classes} classes, so the other outputs are of no "
            f"use; if that is intended, {_other_network(max(known) + 1)}"
        )
    if new := sorted(tested - known):
        listed = ", ".join(map(str, new))
        problems.append(f"no train label is {listed}, but test labels are; divide the images between both parts again")
    return tuple(problems)
