"""Built-in data sets: published ones, which are found on this machine or downloaded once to the user's cache; and
those that need no download, handwritten digits and synthetic images.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvdtrain.datasets.formats.in_memory import CIFAR_ARCHIVE, read_cifar10, read_idx
from hvdtrain.datasets.formats.reading import Arrays, check_sha256, wrap_errors
from hvdtrain.errors import UserError
from hvdtrain.networks.layers import Shape
from hvdtrain.system.files import user_cache
from hvdtrain.system.network import is_offline

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
           "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")  # fmt: skip


class Published(NamedTuple):
    """A data set on the web."""

    mirrors: tuple[str, ...]
    """URLs of folders that hold its files."""
    classes: tuple[str, ...]
    sha256: dict[str, str]
    """Of each file's payload, by file name."""


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
IDX_FILES = tuple(PUBLISHED["mnist"].sha256)
"""The names of MNIST's four files, in the order of `Arrays`."""


def load_published(name: str) -> Arrays:
    """From $HVDTRAIN_DATA/<name>, else from the user's cache; downloaded if neither has it and that is allowed.

    Raises UserError if it is in neither and cannot be downloaded, or is damaged.
    """
    paths, sums = _locate(name), PUBLISHED[name].sha256
    if name != "cifar10":
        return tuple(read_idx(path, _remedy(path), sums[file]) for file, path in paths.items())
    path = paths[CIFAR_ARCHIVE]
    with wrap_errors(path, _remedy(path)), open(path, "rb") as archive:
        check_sha256(archive, CIFAR_ARCHIVE, sums[CIFAR_ARCHIVE])
        return read_cifar10(archive)


def _locate(name: str) -> dict[str, Path]:
    """The path of each file of the data set; downloads those that are missing."""
    source, roots = PUBLISHED[name], [os.environ.get("HVDTRAIN_DATA"), user_cache()]
    folders = [Path(os.path.expanduser(root), name) for root in roots if root]
    paths = {file: find_file(folders, file) for file in source.sha256}
    missing = [file for file, path in paths.items() if path is None]
    if missing and is_offline():
        raise UserError(
            f"--data {name}: {', '.join(missing)} not found in {' or '.join(map(str, folders))}, "
            "and HVDTRAIN_OFFLINE forbids a download",
            f"copy the files of {source.mirrors[0]} there, or run once without that variable",
        )
    if missing:
        from hvdtrain.datasets.downloads import download
    user_mirror = os.environ.get("HVDTRAIN_MIRROR")
    bases = ([f"{user_mirror.rstrip('/')}/{name}/"] if user_mirror else []) + [*source.mirrors]
    for file in missing:
        path = folders[-1] / _spellings(file)[0]
        download(path, [base + path.name for base in bases], source.sha256[file])
        paths[file] = path
    return {file: path for file, path in paths.items() if path}


def find_file(folders: list[Path], file: str) -> Path | None:
    """The first of the folders' files with this name, with or without .gz."""
    candidates = (folder / spelling for folder in folders for spelling in _spellings(file))
    return next((path for path in candidates if os.path.isfile(path)), None)


def _spellings(file: str) -> tuple[str, ...]:
    """Names that a file may have; the published one comes first."""
    return (file,) if file.endswith(".gz") else (f"{file}.gz", file)


def _remedy(path: Path) -> str:
    if user_cache() in path.parents:
        return "delete it, and it is downloaded again (not with HVDTRAIN_OFFLINE)"
    return "replace it with the published file, or unset HVDTRAIN_DATA to download it"


def digits() -> Arrays:
    """1797 handwritten digits of 8x8 pixels (digits-LICENSE.txt), as 28x28 bytes: 1437 to train, 360 to test.

    Values 0 to 16 become 0 to 255. Each pixel is repeated 3x3 times within a border of two zeros, so nothing is
    interpolated. In the order of labels, every fifth image is a test image.
    """
    path = Path(__file__).with_name("digits.npz")
    with np.load(path, allow_pickle=False) as rows:
        values, labels = rows["values"], rows["labels"].astype(np.int64)
    pixels = np.rint(values * (255 / 16)).astype(np.uint8)
    images = np.pad(pixels.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    test = np.zeros(len(labels), bool)
    test[np.argsort(labels, kind="stable")[::5]] = True
    return images[~test], labels[~test], images[test], labels[test]


def synthetic(shape: Shape, classes: int = 10, train: int = 4096, test: int = 1024) -> Arrays:
    """Images of this shape, (channels, height, width): a pattern of 4x4 blocks for each class, plus noise.

    Computed in integers, so the bytes are identical on every machine.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    channels, height, width = shape
    coarse = (classes, channels, -(-height // 4), -(-width // 4))
    blocks = generator.integers(0, 256, coarse, np.int16)
    patterns = blocks.repeat(4, axis=2).repeat(4, axis=3)[:, :, :height, :width]
    labels = np.arange(train + test) % classes
    noise = generator.integers(-64, 65, (len(labels), *shape), np.int16)
    noise += patterns[labels]
    images = noise.clip(0, 255).astype(np.uint8)
    return images[:train], labels[:train], images[train:], labels[train:]
