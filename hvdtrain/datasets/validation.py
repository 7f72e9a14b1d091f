"""Checks that images, labels and class names are valid, and brings them into the form of `Dataset`.

What is valid, but probably a mistake, is a warning.
"""

from __future__ import annotations

import hashlib

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Source
from hvdtrain.networks.layers import text

MAX_SAMPLED, MAX_READ = 1 << 17, 64
"""Rows that a check for mistakes looks at, of arrays in memory and of data that is read."""
MAX_CLASSES = 100_000
"""A larger label is not the number of a class."""
DARK = 0.1
"""Images whose brightest pixel is below this share of the full range are probably scaled wrongly."""


def valid_images(where: str, images: np.ndarray) -> np.ndarray:
    """Images as a `Source` has them, from (n, height, width) or with channels first or last, uint8 or floats.

    where: names the data in messages. Rows of k numbers, (n, k), are images of 1 x 1 x k, of any floats. Raises
    UserError if they are not images.
    """
    if images.ndim == 2:
        return valid_numbers(where, images)[:, np.newaxis, np.newaxis]
    check_image_shape(where, images.shape)
    if images.ndim == 3:
        images = images[:, np.newaxis]
    elif _channels_last(*images.shape[1:]):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype.kind == "f":
        low, high = images.min(), images.max()
        if not (low >= 0 and high <= 1):  # written so that NaN is caught
            if not np.isfinite([low, high]).all():
                first = f", first in row {np.argmin(np.isfinite(images).all((1, 2, 3)))}" * (len(images) > 1)
                raise UserError(f"{where} images have NaN or infinite values{first}", "correct them, or leave them out")
            bytes_ = ": divide them by 255, or store them as uint8" if low >= 0 and high <= 255 else ""
            raise UserError(f"{where} images are floats from {low:g} to {high:g}", f"scale them to [0, 1]{bytes_}")
        images = images.astype(np.float32, copy=False)
    elif images.dtype != np.uint8:
        raise UserError(f"{where} images are of type {images.dtype}", "give uint8, or floats in [0, 1]")
    return np.ascontiguousarray(images)


def valid_numbers(where: str, numbers: np.ndarray) -> np.ndarray:
    """Rows of numbers, (n, k), as float32. where: names the data. Raises UserError for others, and infinite ones."""
    if numbers.dtype.kind not in "biuf" or not numbers.size:
        given = f"{numbers.dtype} of shape {numbers.shape}"
        raise UserError(f"{where}: the numbers of rows are {given}", "give integers or floats, n at least 1")
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(numbers, np.float32)
    for row in np.flatnonzero(~np.isfinite(floats).all(1)):
        raise UserError(f"{where}: row {row} has NaN or infinite numbers", "correct it, or leave it out")
    return floats


def _channels_last(first: int, middle: int, last: int) -> bool:
    """Whether images of this shape have their channels last: gray or in color, with transparency, or 2 channels."""
    return (last in (1, 3) and first not in (1, 3)) or (last in (2, 4) and first > 4 and middle > last)


def check_image_shape(where: str, shape: tuple[int, ...]) -> None:
    """Raise UserError for what is not the shape of images. where: names the data in messages."""
    if len(shape) not in (3, 4) or not shape[0]:
        forms = "(n, height, width) or (n, channels, height, width)"
        raise UserError(f"{where} images have shape {shape}", f"give {forms}, n at least 1")


def check_same_shape(name: str, dataset: Dataset) -> None:
    """Raise UserError unless the images of all parts have the same shape.

    name: of the data in messages.
    """
    train = dataset.input_shape
    for part, source in dataset.parts.items():
        if (test := source[np.zeros(1, np.int64)][0].shape[1:]) == train:
            continue
        gray, color = (text((channels, *train[1:])) for channels in (1, 3))
        remedy = f"give --image-size {gray} for gray or {color} for color images, or save all of them as one of these"
        if train[1:] != test[1:]:
            remedy = "resize them to one shape, image files by --image-size"
        raise UserError(f"{name}: train images are {text(train)}, {part} images {text(test)}", remedy)


def valid_labels(where: str, labels: np.ndarray, images: int, classes: int | None) -> np.ndarray:
    """Labels as a `Source` has them, from any integers, for that number of images; see `compact_labels`."""
    return compact_labels(where, labels, images, classes).astype(np.int64)


def compact_labels(where: str, labels: np.ndarray, images: int, classes: int | None) -> np.ndarray:
    """Labels of any integer type in the smallest type that holds them, so that many fit into memory.

    where: names them in messages. Raises UserError, naming the first wrong row, if one is below 0 or not below
    `classes`, or MAX_CLASSES without it.
    """
    if len(labels.shape) != 1 or labels.dtype.kind not in "iu" or not labels.shape[0]:
        form = f"of type {labels.dtype} and shape {labels.shape}"
        raise UserError(f"{where}: the labels are {form}", "give integers of shape (n,), n at least 1")
    if len(labels) != images:
        raise UserError(f"{where} labels are {len(labels)} for {images} images", "give each image one label")
    wrong = np.flatnonzero((labels < 0) | (labels >= (classes or MAX_CLASSES)))
    if len(wrong):
        allowed = f"the data has {classes} classes" if classes else f"there may be {MAX_CLASSES:,} classes"
        reason = f"{where}: the label of row {wrong[0]} is {labels[wrong[0]]}"
        raise UserError(reason, f"{allowed}, from 0 on: correct it")
    return labels.astype(np.min_scalar_type(int(labels.max())))


def names_or_numbers(where: str, names: tuple[str, ...], labels: np.ndarray) -> tuple[str, ...]:
    """The names of the classes, or, if there are none, the numbers from 0 to the largest label.

    Raises UserError for a name that is empty or occurs twice.
    """
    if not all(map(str.strip, names)) or len(set(names)) < len(names):
        wrong = next(name for name in names if not name.strip() or names.count(name) > 1)
        problem = f"is {wrong!r}" + " more than once" * bool(wrong.strip())
        raise UserError(f"{where}: the name of a class {problem}", "give each class a name of its own")
    return names or tuple(map(str, range(int(labels.max()) + 1)))


def fingerprint_of_labels(labels: np.ndarray) -> str:
    """SHA-256 of labels of any type, in hexadecimal digits."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def suspicious(dataset: Dataset) -> list[str]:
    """What is probably wrong with images and labels: each problem with its remedy, in one sentence."""
    sources = dataset.train, dataset.test
    (images, labels), (test_images, test_labels) = map(_sample, sources)
    problems = []
    if images.shape[1:3] != (1, 1):  # else numbers
        problems = [_many_channels(images.shape[1:]), _dark("train", images) or _dark("test", test_images)]
    if dataset.classes and labels is not None and test_labels is not None:
        problems += _labels(labels, test_labels, len(dataset.classes))
    return [*(f"--data {dataset.name}: {problem}" for problem in problems if problem), *advice(dataset)]


def advice(dataset: Dataset) -> list[str]:
    """What the sources themselves found to be probably wrong, each in one sentence with its remedy."""
    return list(dict.fromkeys(text for source in dataset.parts.values() for text in source.advice))


def _sample(source: Source) -> tuple[np.ndarray, np.ndarray | None]:
    """Images of evenly spread rows, and labels: theirs if they are in memory, else those that occur, if known."""
    rows = np.linspace(0, len(source) - 1, MAX_SAMPLED if source.in_memory else MAX_READ).astype(np.int64)
    images, labels = source[np.unique(rows)]
    return images, labels if source.in_memory else source.labels(1)


def _many_channels(shape: tuple[int, ...]) -> str:
    """The problem of images whose channels were probably last; empty if they were not."""
    channels, height, width = shape
    if channels <= 4 or width >= min(channels, height):
        return ""
    return (
        f"the images are read as {channels} channels of {height}x{width} pixels; if they have {width} channels, which "
        "are last, store them as (n, channels, height, width)"
    )


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


def _labels(train: np.ndarray, test: np.ndarray, classes: int) -> tuple[str, ...]:
    known, tested = set(np.unique(train)), set(np.unique(test))
    problems = []
    if len(known) == 1:
        problems.append(f"all train labels are {min(known)}, so there is nothing to tell apart; check the labels")
    elif len(known) < classes:
        begins = f"; subtract {min(known)} if they should begin at 0" if min(known) else ""
        problems.append(
            f"the train labels have {len(known)} of {classes} classes, so the other outputs are of no use{begins}"
        )
    if new := sorted(tested - known):
        listed = ", ".join(map(str, new))
        problems.append(f"no train label is {listed}, but test labels are; divide the images between both parts again")
    return tuple(problems)
