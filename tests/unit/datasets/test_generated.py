"""Digits and synthetic images."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from hvdtrain.datasets.arrays import ArraySource
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.layers import Shape


def test_digits_are_enlarged_exactly() -> None:
    from sklearn.datasets import load_digits

    digits = load_dataset("digits")
    assert digits.train.arrays[0].shape == (1437, 1, 28, 28) and digits.test.arrays[0].shape == (360, 1, 28, 28)
    assert digits.train.arrays[0].dtype == np.uint8 and digits.test.arrays[1].dtype == np.int64
    assert digits.classes == tuple("0123456789")
    values, labels = load_digits(return_X_y=True)
    expected = np.kron(np.rint(values.reshape(-1, 8, 8) * 255 / 16), np.ones((3, 3)))
    expected = {
        (label, np.pad(image, 2).astype(np.uint8).tobytes()) for label, image in zip(labels, expected, strict=True)
    }
    images = np.concatenate([digits.train.arrays[0], digits.test.arrays[0]])
    labels = np.concatenate([digits.train.arrays[1], digits.test.arrays[1]])
    assert {(label, image.tobytes()) for label, image in zip(labels, images, strict=True)} == expected
    assert len(images) == 1797 and images.max() == 255
    counts = np.bincount(digits.test.arrays[1])
    assert counts.min() >= 34 and counts.max() <= 37


def test_digits_need_no_import_of_scikit_learn() -> None:
    """With SciPy it would add 0.6 s to the start of each rank."""
    program = "import sys; from hvdtrain.datasets.generated import digits; digits(); print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"False\n"


def test_digits_without_scikit_learn_are_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="--data digits: scikit-learn is not installed; run: make setup"):
        load_dataset("digits")


def test_generated_bytes_never_change() -> None:
    """Checkpoints record these fingerprints, and ranks compare them."""
    assert load_dataset("digits").fingerprint.startswith("a47d6c770d844d39")
    assert load_dataset("synthetic").fingerprint.startswith("346b4ce2e2d73047")
    assert load_dataset("synthetic").fingerprint != load_dataset("synthetic", (3, 32, 32)).fingerprint


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 5, 7)])
def test_synthetic_can_be_learned(shape: Shape) -> None:
    made = load_dataset("synthetic", shape)
    (images, labels), (test_images, test_labels) = made.train.arrays, made.test.arrays
    assert images.shape == (4096, *shape) and len(test_labels) == 1024 and made.input_shape == shape
    assert images.dtype == np.uint8 and made.classes == tuple("0123456789")
    means = np.stack([images[labels == label].mean(0) for label in range(10)])
    distance = ((test_images[:, np.newaxis] - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == test_labels).mean() > 0.95


def test_synthetic_images_have_a_shape_for_networks_that_take_any() -> None:
    assert load_dataset("synthetic").fingerprint == load_dataset("synthetic", (1, 28, 28)).fingerprint


def test_arrays_are_writable_and_contiguous() -> None:
    made = load_dataset("synthetic")
    for array in (*made.train.arrays, *made.test.arrays):
        assert array.flags.writeable and array.flags.c_contiguous


def test_fingerprint_depends_on_every_bit() -> None:
    before = load_dataset("synthetic").fingerprint
    assert len(before) == 64 and before == load_dataset("synthetic").fingerprint
    made = load_dataset("synthetic")
    made.test.arrays[1][-1] ^= 1
    assert made.fingerprint != before
    (images, labels), test = load_dataset("synthetic").train.arrays, load_dataset("synthetic").test
    assert Dataset("synthetic", ArraySource(images.reshape(-1, 28, 28), labels), test, ()).fingerprint != before
