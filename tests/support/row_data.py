"""Small data sets in the formats that are read row by row, all with the same rows."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from support.errors import refused

CLASSES = ("ape", "bee", "cat")
PARTS = {"train": 12, "test": 6}


def arrays(part: str, shape: tuple[int, ...] = (5, 4)) -> tuple[np.ndarray, np.ndarray]:
    """Random images, uint8 (n, *shape), and labels in ascending order, as an image folder has them."""
    generator = np.random.default_rng(len(part))
    count = PARTS[part]
    return generator.integers(0, 256, (count, *shape), np.uint8), np.arange(count) * len(CLASSES) // count


def png(image: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def write_npy(folder: Path) -> Path:
    folder.mkdir()
    for part in PARTS:
        images, labels = arrays(part)
        np.save(folder / f"{part}-images.npy", images)
        np.save(folder / f"{part}-labels.npy", labels)
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder


def write_images(folder: Path) -> Path:
    for part in PARTS:
        for number, (image, label) in enumerate(zip(*arrays(part), strict=True)):
            inside = folder / part / CLASSES[label]
            inside.mkdir(parents=True, exist_ok=True)
            (inside / f"{number:03}.png").write_bytes(png(image))
    return folder


PYTHON = """
import numpy as np

class Tensor:  # has what hvdtrain uses of a tensor
    def __init__(self, array):
        self.array = array
    def numpy(self):
        return self.array

class MapStyle:
    classes = {classes}
    def __init__(self, part):
        self.images, self.labels = (np.load("{folder}/" + part + "-" + kind + ".npy") for kind in ("images", "labels"))
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, row):
        if not 0 <= row < len(self):
            raise IndexError(row)
        return Tensor(self.images[row]), self.labels[row]

class Source(MapStyle):
    fingerprint = "mine"
    def __getitem__(self, rows):
        return self.images[rows], self.labels[rows]

def map_style():
    return MapStyle("train"), MapStyle("test")

def source():
    return Source("train"), Source("test")

def arrays():
    train, test = map_style()
    return (train.images, train.labels), (test.images, test.labels), train.classes

class Broken(MapStyle):
    def __getitem__(self, row):
        if row == 4:
            raise ValueError("no such file")
        return super().__getitem__(row)

def broken():
    return Broken("train"), MapStyle("test")

class Killed(MapStyle):
    def __getitem__(self, row):
        import os, sys
        if "-c" in sys.argv[0] and row == 4:
            os.kill(os.getpid(), 9)
        return super().__getitem__(row)

def killed():
    return Killed("train"), MapStyle("test")

class Random(MapStyle):
    def __getitem__(self, row):
        image, label = super().__getitem__(row)
        return np.random.default_rng().integers(0, 256, image.array.shape, np.uint8), label

def random():
    return Random("train"), MapStyle("test")

nothing = 3
def fails():
    return 1 / 0
def unnamed():
    train, test = map_style()
    return list(train), list(test)
"""


def write_python(folder: Path, name: str = "map_style") -> str:
    """A Python file with data of this name; returns what --data takes."""
    if not folder.exists():
        write_npy(folder)
        (folder / "mine.py").write_text(PYTHON.format(folder=folder, classes=list(CLASSES)))
    return f"{folder / 'mine.py'}:{name}"


WRITERS: dict[str, Callable[[Path], object]] = {
    "npy": write_npy,
    "images": write_images,
    "map_style": write_python,
    "source": lambda folder: write_python(folder, "source"),
}
"""Each writes the rows of `arrays`, and returns what --data takes."""


def rejected(data: object, *texts: str, **options: object) -> UserError:
    """Loading or reading the data fails with one line that contains these texts."""

    def load() -> None:
        dataset = load_dataset(str(data), **options)
        for source in (dataset.train, dataset.test):
            source[np.arange(len(source))]

    return refused(load, *texts)
