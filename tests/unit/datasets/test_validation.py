"""Images and labels that do not fit the network are rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data_files import BYTES, FLOATS, assert_rejected, save_npz, write_own

from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.datasets.validation import suspicious, valid_images
from hvdtrain.interfaces import Dataset


@pytest.mark.parametrize(
    ("images", "labels", "texts"),
    [
        (BYTES, [0, 1, 2], ["train labels are 3 for 5 images"]),
        (
            BYTES,
            [0, 1, 2, 3, 100_000],
            ["the label of row 4 is 100000; there may be 100,000 classes, from 0 on"],
        ),
        (BYTES, [0, 1, 2, 3, -1], ["train: the label of row 4 is -1"]),
        (BYTES, np.array([0, 1, 2, 3, 2**64 - 1], np.uint64), ["the label of row 4 is 18446744073709551615"]),
        (BYTES, [0.0] * 5, ["train: the labels are of type float64"]),
        (BYTES, [[0]] * 5, ["train: the labels are of type int64 and shape (5, 1)"]),
        (BYTES[:0], np.zeros(0, int), ["train images have shape (0, 2, 3)", "n at least 1"]),
        (BYTES[0], [0, 1], ["train images have shape (2, 3)"]),
        (np.array(3.0), [0], ["train images have shape ()"]),
        (BYTES.astype(int), [0] * 5, ["train images are of type int64; give uint8, or floats in [0, 1]"]),
        (BYTES.astype(float), [0] * 5, ["floats from 0 to 29; scale them to [0, 1]: divide them by 255, or"]),
        (FLOATS - 0.5, [0] * 2, ["floats from -0.5 to 0.5"]),
        (np.where(FLOATS > 0.5, np.nan, FLOATS), [0] * 2, ["floats from nan to nan"]),
        (np.where(FLOATS > 0.5, np.inf, FLOATS), [0] * 2, ["floats from 0 to inf"]),
        (FLOATS + 0j, [0] * 2, ["of type complex128"]),
        (np.full((2, 2, 3), "a"), [0] * 2, ["of type <U1"]),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, images: np.ndarray, labels: object, texts: list[str]) -> None:
    assert_rejected(write_own(tmp_path, images, labels), f"{tmp_path}: train", *texts)


def test_test_data_is_checked_too(tmp_path: Path) -> None:
    write_own(tmp_path)
    save_npz(tmp_path, "test.npz", images=FLOATS, labels=np.array([3, 4]))
    assert_rejected(tmp_path, "test: the label of row 1 is 4; the data has 4 classes, from 0 on: correct it")


def test_training_and_test_images_have_the_same_shape(tmp_path: Path) -> None:
    write_own(tmp_path, BYTES.transpose(0, 2, 1))
    assert_rejected(tmp_path, f"{tmp_path}: train images are 1x3x2, test images 1x2x3; resize them")


def test_the_number_of_classes_is_that_of_the_training_labels(tmp_path: Path) -> None:
    found = load_dataset(str(write_own(tmp_path, labels=[0, 1, 6, 3, 2])))
    assert found.classes == tuple("0123456") and found.input_shape == (1, 2, 3)


LABELS = np.arange(8) % 4
GOOD = np.linspace(0, 255, 48).astype(np.uint8).reshape(8, 1, 2, 3)


@pytest.mark.parametrize(
    ("images", "labels", "problems"),
    [
        (GOOD, LABELS, []),
        (GOOD / np.float32(255), LABELS, []),
        (GOOD // 255, LABELS, ["no pixel of the train images exceeds 1, and uint8 is divided by 255, so they are "
                               "almost black; multiply them by 255, or store them as float32 in [0, 1]"]),
        (GOOD // 16, LABELS, ["exceeds 15, and uint8 is divided by 255, so they are almost black; multiply them by"]),
        (GOOD / np.float32(255 * 255), LABELS, ["exceeds 0.0039, so they are almost black; scale them to [0, 1] once"]),
        (np.zeros_like(GOOD), LABELS, ["all pixels of the train images are 0"]),
        (np.ones((8, 1, 2, 3), np.float32), LABELS, ["all pixels of the train images are 1"]),
        (GOOD, np.full(8, 3), ["all train labels are 3", "no train label is 0, 1, 2, but test labels are"]),
        (GOOD, LABELS % 3, ["the train labels have 3 of 4 classes", "no train label is 3"]),
    ],
)  # fmt: skip
def test_data_that_is_probably_wrong(images: np.ndarray, labels: np.ndarray, problems: list[str]) -> None:
    found = suspicious(Dataset("mine", ArraySource(images, labels), ArraySource(GOOD, LABELS), tuple("0123")))
    assert len(found) == len(problems), found
    for problem, text in zip(problems, found, strict=True):
        assert text.startswith("--data mine: ") and problem in text


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(5, 5), (20, 18), (32, 8)])
def test_few_channels_may_be_last(channels: int, size: tuple[int, int]) -> None:
    last = np.random.default_rng(0).integers(0, 255, (3, *size, channels), np.uint8)
    first = np.ascontiguousarray(last.transpose(0, 3, 1, 2))
    for images in (first, last):
        np.testing.assert_array_equal(valid_images("train", images), first)


@pytest.mark.parametrize(
    ("shape", "warned"),
    [((20, 18, 5), 1), ((28, 28, 12), 1), ((512, 7, 7), 0), ((16, 4, 4), 0), ((6, 28, 28), 0), ((4, 8, 2), 0)],
)
def test_images_whose_channels_were_probably_last(shape: tuple[int, ...], warned: int) -> None:
    images = valid_images("train", np.linspace(0, 255, 8 * np.prod(shape)).astype(np.uint8).reshape(8, *shape))
    source = ArraySource(images, LABELS)
    assert images.shape[1:] == shape
    assert len(suspicious(Dataset("mine", source, source, tuple("0123")))) == warned


def test_built_in_data_is_not_suspicious() -> None:
    for name in ("digits", "synthetic"):
        assert suspicious(load_dataset(name)) == []
