"""Digits and synthetic images."""

from __future__ import annotations

import numpy as np
import pytest
from support.data_files import CIFAR_LENET, LENET

from hvdtrain.datasets.registry import load_dataset
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.description import Network


def test_digits_are_enlarged_exactly() -> None:
    from sklearn.datasets import load_digits

    digits = load_dataset("digits", LENET)
    assert digits.train_images.shape == (1437, 1, 28, 28) and digits.test_images.shape == (360, 1, 28, 28)
    assert digits.train_images.dtype == np.uint8 and digits.test_labels.dtype == np.int64
    assert digits.classes == tuple("0123456789")
    values, labels = load_digits(return_X_y=True)
    expected = np.kron(np.rint(values.reshape(-1, 8, 8) * 255 / 16), np.ones((3, 3)))
    expected = {
        (label, np.pad(image, 2).astype(np.uint8).tobytes()) for label, image in zip(labels, expected, strict=True)
    }
    images = np.concatenate([digits.train_images, digits.test_images])
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    assert {(label, image.tobytes()) for label, image in zip(labels, images, strict=True)} == expected
    assert len(images) == 1797 and images.max() == 255
    counts = np.bincount(digits.test_labels)
    assert counts.min() >= 34 and counts.max() <= 37


def test_generated_bytes_never_change() -> None:
    """Checkpoints record these fingerprints, and ranks compare them."""
    assert load_dataset("digits", LENET).fingerprint.startswith("d7c79dc8146dcaad")
    assert load_dataset("synthetic", LENET).fingerprint.startswith("4e6725a7376225c1")
    assert load_dataset("synthetic", LENET).fingerprint != load_dataset("synthetic", CIFAR_LENET).fingerprint


@pytest.mark.parametrize("network", [LENET, CIFAR_LENET, Network((2, 5, 7), 3, ())])
def test_synthetic_can_be_learned(network: Network) -> None:
    made = load_dataset("synthetic", network)
    assert made.train_images.shape == (4096, *network.input_shape) and len(made.test_labels) == 1024
    assert made.train_images.dtype == np.uint8 and made.classes == tuple(map(str, range(network.classes)))
    means = np.stack([made.train_images[made.train_labels == label].mean(0) for label in range(network.classes)])
    distance = ((made.test_images[:, np.newaxis] - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == made.test_labels).mean() > 0.95


def test_arrays_are_writable_and_contiguous() -> None:
    made = load_dataset("synthetic", LENET)
    for array in (made.train_images, made.train_labels, made.test_images, made.test_labels):
        assert array.flags.writeable and array.flags.c_contiguous


def test_fingerprint_depends_on_every_bit() -> None:
    made = load_dataset("synthetic", LENET)
    before = made.fingerprint
    assert len(before) == 64 and before == load_dataset("synthetic", LENET).fingerprint
    made.test_labels[-1] ^= 1
    arrays = (made.train_images, made.train_labels, made.test_images, made.test_labels)
    assert Dataset("synthetic", *arrays, made.classes).fingerprint != before
