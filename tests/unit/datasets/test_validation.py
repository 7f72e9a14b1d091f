"""Images and labels that do not fit the network are rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data_files import BYTES, CIFAR_LENET, FLOATS, SMALL, assert_rejected, save_npz, write_own


@pytest.mark.parametrize(
    ("images", "labels", "texts"),
    [
        (BYTES, [0, 1, 2], ["train labels are 3 for 5 images"]),
        (BYTES, [0, 1, 2, 3, 4], ["train labels run from 0 to 4", "4 classes, 0 to 3"]),
        (BYTES, [0, 1, 2, 3, -1], ["train labels run from -1 to 3"]),
        (BYTES, np.array([0, 1, 2, 3, 2**64 - 1], np.uint64), ["run from 0 to 18446744073709551615"]),
        (BYTES, [0.0] * 5, ["train labels are of type float64"]),
        (BYTES, [[0]] * 5, ["train labels are of type int64 and shape (5, 1)"]),
        (BYTES[:0], np.zeros(0, int), ["train images have shape (0, 2, 3)", "n at least 1"]),
        (BYTES[0], [0, 1], ["train images have shape (2, 3)"]),
        (np.array(3.0), [0], ["train images have shape ()"]),
        (
            BYTES.transpose(0, 2, 1),
            [0] * 5,
            ["train images are 1x3x2 but the network takes 1x2x3", "resize them"],
        ),
        (BYTES.astype(int), [0] * 5, ["train images are of type int64; give uint8, or floats in [0, 1]"]),
        (BYTES.astype(float), [0] * 5, ["floats from 0 to 29; scale them to [0, 1]"]),
        (FLOATS - 0.5, [0] * 2, ["floats from -0.5 to 0.5"]),
        (np.where(FLOATS > 0.5, np.nan, FLOATS), [0] * 2, ["floats from nan to nan"]),
        (np.where(FLOATS > 0.5, np.inf, FLOATS), [0] * 2, ["floats from 0 to inf"]),
        (FLOATS + 0j, [0] * 2, ["of type complex128"]),
        (np.full((2, 2, 3), "a"), [0] * 2, ["of type <U1"]),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, images: np.ndarray, labels: object, texts: list[str]) -> None:
    assert_rejected(write_own(tmp_path, images, labels), f"--data {tmp_path}: train", *texts, network=SMALL)


def test_test_data_is_checked_too(tmp_path: Path) -> None:
    write_own(tmp_path)
    save_npz(tmp_path, "test.npz", images=FLOATS, labels=np.array([3, 4]))
    assert_rejected(tmp_path, "test labels run from 3 to 4", network=SMALL)


def test_model_that_fits_is_suggested() -> None:
    text = "images are 1x28x28 but cifar_lenet takes 3x32x32; use --model lenet"
    assert_rejected("digits", "--data digits: ", text, network=CIFAR_LENET)
