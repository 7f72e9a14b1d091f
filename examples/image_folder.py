"""A task: images in a folder for each class, randomly mirrored and shifted, and a small convolutional network.

photos/train/CLASS/*.jpg and photos/test/CLASS/*.jpg, or any other data of docs/data.md:
    hvdtrain launch local -n 2 -- python -m hvdtrain train examples/image_folder.py:Photos --set folder=photos
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import hvdtrain

Rows = tuple[np.ndarray, ...]


class Scale(nn.Module):
    """uint8 from 0 to 255 -> float32 from -1 to 1."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images / 127.5 - 1


def convolution(inputs: int, outputs: int) -> list[nn.Module]:
    """A convolution that halves the image, normalized."""
    return [nn.Conv2d(inputs, outputs, 3, 2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


class Photos:
    """Color images, resized to size x size pixels. Each rank reads its own rows, when a step needs them."""

    def __init__(self, folder: str = "photos", size: int = 32, shift: int = 4, width: int = 32) -> None:
        self.dataset = hvdtrain.load_dataset(folder, image_size=(3, size, size))
        self.shift, self.width = shift, width

    def data(self) -> tuple[Any, Any]:
        return self.dataset.train, self.dataset.test

    def augment(self, rows: Rows, generators: list[np.random.Generator]) -> Rows:
        images, labels = rows
        return np.stack([self._change(*one) for one in zip(images, generators, strict=True)]), labels

    def _change(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Mirror an image, (3, height, width), or not, and cut it out of a larger one, whose border mirrors it."""
        if generator.random() < 0.5:
            image = image[:, :, ::-1]
        _, height, width = image.shape
        larger = np.pad(image, ((0, 0), (self.shift,) * 2, (self.shift,) * 2), "reflect")
        top, left = generator.integers(0, 2 * self.shift + 1, 2)
        return larger[:, top : top + height, left : left + width]

    def model(self) -> nn.Module:
        layers = [*convolution(3, self.width), *convolution(self.width, 2 * self.width)]
        layers += convolution(2 * self.width, 4 * self.width)
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * self.width, len(self.dataset.classes))]
        return nn.Sequential(Scale(), *layers, *pooled)
