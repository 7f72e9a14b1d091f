"""The data sets: made here, published, or the user's own, all in one form.

`load` is all that training needs. Arrays stay as small as their source; scaling and batches come later.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pooch

from hvdtrain.datasets.downloads import download
from hvdtrain.datasets.formats import (
    CIFAR_ARCHIVE,
    CIFAR_FILES,
    Arrays,
    blame,
    check,
    cifar,
    cifar_members,
    read_idx,
    read_npz,
)
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.description import Network
from hvdtrain.networks.registry import NETWORKS

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
           "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")  # fmt: skip


class Published(NamedTuple):
    """A data set on the web: where its files are, what its classes are called, each payload's SHA-256."""

    mirrors: tuple[str, ...]
    classes: tuple[str, ...]
    sha256: dict[str, str]


# The sums are of the authors' IDX files unzipped (one payload may be zipped in many ways), and of CIFAR-10's
# archive as it is, from TensorFlow Datasets; its author gives only the MD5, c32a1d4ab5d03f1284b67883e8d87530.
PUBLISHED = {
    "fashion-mnist": Published(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        FASHION,
        {
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    ),
    "mnist": Published(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        tuple("0123456789"),
        {
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
    "cifar10": Published(
        ("https://www.cs.toronto.edu/~kriz/",),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        {CIFAR_ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
}
NAMES = ("digits", "synthetic", *PUBLISHED)
IDX_FILES = tuple(PUBLISHED["mnist"].sha256)
"""What MNIST's four files are called, in the order of Arrays."""


def load_dataset(data: str, network: Network, offline: bool = False) -> Dataset:
    """The data set called `data`, or the user's own at that path, checked against what the network takes.

    Raises UserError, which names the file or option, what is wrong and what to do.
    """
    classes = tuple(str(label) for label in range(network.classes))
    if data == "digits":
        arrays = _digits()
    elif data == "synthetic":
        arrays = _synthetic(network)
    elif data in PUBLISHED:
        arrays, classes = _published(data, offline), PUBLISHED[data].classes
    else:
        arrays = _own(data)
    train_images, train_labels, test_images, test_labels = arrays
    train, test = f"--data {data}: train", f"--data {data}: test"
    return Dataset(
        data,
        _images(train, train_images, network),
        _labels(train, train_labels, len(train_images), network.classes),
        _images(test, test_images, network),
        _labels(test, test_labels, len(test_images), network.classes),
        classes,
    )


def _images(where: str, images: np.ndarray, network: Network) -> np.ndarray:
    """Images as Dataset has them, from (n, height, width) or with channels first or last, uint8 or floats."""
    if images.ndim not in (3, 4) or len(images) == 0:
        shape = "(n, height, width) or (n, channels, height, width)"
        raise UserError(f"{where} images have shape {images.shape}; give {shape}, n at least 1")
    if images.ndim == 3:
        images = images[:, np.newaxis]
    elif images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1:] != network.input_shape:
        raise UserError(f"{where} images are {_misfit(images.shape[1:], network)}")
    if images.dtype.kind == "f":
        low, high = images.min(), images.max()
        if not (low >= 0 and high <= 1):  # so that NaN is caught
            raise UserError(f"{where} images are floats from {low:g} to {high:g}; scale them to [0, 1]")
        images = images.astype(np.float32, copy=False)
    elif images.dtype != np.uint8:
        raise UserError(f"{where} images are of type {images.dtype}; give uint8, or floats in [0, 1]")
    return np.ascontiguousarray(images)


def _misfit(shape: tuple[int, ...], network: Network) -> str:
    """What the images are, what the network takes, and which network would take them."""
    name = next((name for name, known in NETWORKS.items() if known == network), "the network")
    other = next((name for name, known in NETWORKS.items() if known.input_shape == shape), "")
    remedy = f"use --model {other}" if other else "bring them to that shape"
    ours, theirs = ("x".join(map(str, lengths)) for lengths in (shape, network.input_shape))
    return f"{ours} but {name} takes {theirs}; {remedy}"


def _labels(where: str, labels: np.ndarray, images: int, classes: int) -> np.ndarray:
    """Labels as Dataset has them, from any integers."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        found = f"of type {labels.dtype} and shape {labels.shape}"
        raise UserError(f"{where} labels are {found}; give integers of shape (n,)")
    if len(labels) != images:
        raise UserError(f"{where} labels are {len(labels)} for {images} images; give each image one label")
    if labels.min() < 0 or labels.max() >= classes:
        found = f"run from {labels.min()} to {labels.max()}"
        raise UserError(f"{where} labels {found}; the network has {classes} classes, 0 to {classes - 1}")
    return np.ascontiguousarray(labels, np.int64)


# Made here.


def _digits() -> Arrays:
    """scikit-learn's 1797 handwritten digits of 8x8, values 0 to 16, as 28x28 bytes: 1437 train, 360 test.

    Each pixel becomes 3x3 equal ones within a border of two zeros, so nothing is interpolated. In order of
    labels, every fifth image is for the test.
    """
    from sklearn.datasets import load_digits  # slow to import

    values, labels = load_digits(return_X_y=True)
    pixels = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = np.pad(pixels.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    test = np.zeros(len(labels), bool)
    test[np.argsort(labels, kind="stable")[::5]] = True
    return images[~test], labels[~test], images[test], labels[test]


def _synthetic(network: Network, train: int = 4096, test: int = 1024) -> Arrays:
    """Images of the network's shape: a pattern of 4x4 blocks for each class, and noise over it.

    Integers all the way, so the bytes are the same on every machine.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    channels, height, width = network.input_shape
    coarse = (network.classes, channels, -(-height // 4), -(-width // 4))
    blocks = generator.integers(0, 256, coarse, np.int16)
    patterns = blocks.repeat(4, axis=2).repeat(4, axis=3)[:, :, :height, :width]
    labels = np.arange(train + test) % network.classes
    noise = generator.integers(-64, 65, (len(labels), *network.input_shape), np.int16)
    noise += patterns[labels]
    images = noise.clip(0, 255).astype(np.uint8)
    return images[:train], labels[:train], images[train:], labels[train:]


# Published: found on this machine, or brought there once.


def _published(name: str, offline: bool) -> Arrays:
    """From $HVDTRAIN_DATA/<name>, else from the user's cache, downloaded where it is in neither."""
    if name == "cifar10":
        return _cifar10(offline)
    paths = _paths(name, offline)
    return tuple(read_idx(path, _remedy(path), PUBLISHED[name].sha256[file]) for file, path in paths.items())


def _cifar10(offline: bool) -> Arrays:
    """From the six extracted files where they lie together, else from the archive."""
    for folder in _folders("cifar10"):
        files = [folder / file for file in CIFAR_FILES]
        if all(map(os.path.isfile, files)):
            with blame(folder, _remedy(folder)):
                return cifar((path.name, path.read_bytes()) for path in files)
    path = _paths("cifar10", offline)[CIFAR_ARCHIVE]
    with blame(path, _remedy(path)), open(path, "rb") as file:
        check(file, CIFAR_ARCHIVE, PUBLISHED["cifar10"].sha256[CIFAR_ARCHIVE])
        return cifar(cifar_members(file))


def _paths(name: str, offline: bool) -> dict[str, Path]:
    """Where each file of the data set lies, once all are there."""
    source, target = PUBLISHED[name], _folders(name)[-1]
    found = {file: _find(_folders(name), file) for file in source.sha256}
    missing = [file for file, path in found.items() if path is None]
    if missing and offline:
        runtime = " or ".join(str(folder) for folder in _folders(name))
        raise UserError(
            f"--data {name}: {', '.join(missing)} not found in {runtime}, and --offline forbids to fetch; "
            f"copy there the files of {source.mirrors[0]}, or run once without --offline"
        )
    own = os.environ.get("HVDTRAIN_MIRROR")
    bases = ([f"{own.rstrip('/')}/{name}/"] if own else []) + [*source.mirrors]
    for file in missing:
        path = target / _spellings(file)[0]
        download(path, [base + path.name for base in bases], source.sha256[file])
        found[file] = path
    return {file: path for file, path in found.items() if path}


def _folders(name: str) -> list[Path]:
    """Where a published data set may lie: the user's choice first, and last the cache."""
    roots = [os.environ.get("HVDTRAIN_DATA"), pooch.os_cache("hvdtrain")]
    return [Path(os.path.expanduser(root), name) for root in roots if root]


def _find(folders: list[Path], file: str) -> Path | None:
    candidates = (folder / spelling for folder in folders for spelling in _spellings(file))
    return next((path for path in candidates if os.path.isfile(path)), None)


def _spellings(file: str) -> tuple[str, ...]:
    """What a file may be called; first, as it is published."""
    return (file,) if file.endswith(".gz") else (f"{file}.gz", file)


def _remedy(path: Path) -> str:
    if Path(pooch.os_cache("hvdtrain")) in path.parents:
        return "delete it and it is fetched again (not with --offline)"
    return "put the published file in its place, or unset HVDTRAIN_DATA and it is fetched"


# The user's own.


def _own(data: str) -> Arrays:
    """From train.npz and test.npz, from files named as MNIST's, or from one .npz of the form of Keras' MNIST.

    Raises UserError where the path holds none of them.
    """
    path = Path(os.path.expanduser(data))
    if not data or not os.path.exists(path):
        close = difflib.get_close_matches(data, NAMES, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(f"--data {data}: no such folder{hint}; give one, or one of {', '.join(NAMES)}")
    if any(os.path.exists(path / name) for name in ("train.npz", "test.npz")):
        train, test = (read_npz(path / name, ("images", "labels")) for name in ("train.npz", "test.npz"))
        return train + test
    found = [_find([path], file) for file in IDX_FILES]
    if any(found):
        return tuple(_own_idx(path, file, at) for file, at in zip(IDX_FILES, found, strict=True))
    single = [path] if os.path.isfile(path) else sorted(path.glob("*.npz"))
    if len(single) == 1:
        return read_npz(single[0], ("x_train", "y_train", "x_test", "y_test"))
    raise UserError(
        f"--data {data}: holds {len(single)} .npz files; give train.npz and test.npz with images and labels, "
        f"or one with x_train, y_train, x_test and y_test, or IDX files named as MNIST's ({IDX_FILES[0]})"
    )


def _own_idx(folder: Path, file: str, found: Path | None) -> np.ndarray:
    if found is None:
        raise UserError(f"{folder / file}: missing, with .gz or without; put it beside the other IDX files")
    return read_idx(found, "write it anew, or take it out of the folder")
