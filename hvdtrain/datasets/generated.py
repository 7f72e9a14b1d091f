"""Data sets that need no download: scikit-learn's digits, and synthetic images."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from hvdtrain.datasets.formats.reading import Arrays, wrap_errors
from hvdtrain.errors import UserError
from hvdtrain.networks.layers import Shape


def digits() -> Arrays:
    """scikit-learn's 1797 handwritten digits of 8x8 pixels, as 28x28 bytes: 1437 to train, 360 to test.

    Values 0 to 16 become 0 to 255. Each pixel is repeated 3x3 times within a border of two zeros, so nothing is
    interpolated. In the order of labels, every fifth image is a test image.
    """
    # Importing scikit-learn, and with it SciPy, would add 0.6 s of CPU time to the start of each rank.
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.origin:
        raise UserError("--data digits: scikit-learn is not installed", "run: make setup")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with wrap_errors(path, "install scikit-learn again, by: make setup"):
        rows = np.loadtxt(path, delimiter=",")
    values, labels = rows[:, :-1], rows[:, -1].astype(np.int64)
    pixels = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
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
