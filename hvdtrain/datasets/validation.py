"""Checks that images and labels fit the network, and brings them into the form of `Dataset`."""

from __future__ import annotations

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.networks.description import Network
from hvdtrain.networks.registry import NETWORKS


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
            raise UserError(f"{where} images are floats from {low:g} to {high:g}", "scale them to [0, 1]")
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
        raise UserError(
            f"{where} labels run from {labels.min()} to {labels.max()}",
            f"the network has {classes} classes, 0 to {classes - 1}",
        )
    return np.ascontiguousarray(labels, np.int64)
