"""A task: images in a folder for each class, randomly mirrored and shifted, and a small convolutional network.

photos/ has folders train/CLASS/ and test/CLASS/ of image files:
    hvdtrain train -n 2 examples/image_folder.py:Photos --arg folder=photos

With the first 6,000 images of Fashion-MNIST as PNG files, the test accuracy is 0.88 after 30 epochs, and 0.87 without
`augment`.
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

    def __init__(self, folder: str = "photos", size: int = 32, shift: int = 2, width: int = 32) -> None:
        self.dataset = hvdtrain.load_dataset(folder, image_size=(3, size, size))
        self.shift, self.width = shift, width

    def data(self) -> tuple[Any, Any]:
        return self.dataset.train, self.dataset.test

    def augment(self, rows: Rows, generators: list[np.random.Generator]) -> Rows:
        """Mirror half of the images, and cut each out of a larger one with a mirrored border."""
        images, labels = rows  # (n, 3, height, width), copies that may be changed
        border = (self.shift, self.shift)
        larger = np.pad(images, ((0, 0), (0, 0), border, border), "reflect")
        for image, around, generator in zip(images, larger, generators, strict=True):
            top, left = generator.integers(0, 2 * self.shift + 1, 2)
            cut = around[:, top : top + image.shape[1], left : left + image.shape[2]]
            image[:] = cut[:, :, ::-1] if generator.random() < 0.5 else cut
        return images, labels

    def model(self) -> nn.Module:
        layers = [*convolution(3, self.width), *convolution(self.width, 2 * self.width)]
        layers += convolution(2 * self.width, 4 * self.width)
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * self.width, len(self.dataset.classes))]
        return nn.Sequential(Scale(), *layers, *pooled)
