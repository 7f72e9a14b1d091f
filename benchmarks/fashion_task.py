"""A task of a user's own for user_task.py: a convolutional network with batch normalization, 420,000 parameters."""

import numpy as np
from torch import nn

from hvdtrain.datasets.registry import load_dataset


class Task:
    """Gray images of 28 x 28 pixels in ten classes. name: of hvdtrain's data set."""

    def __init__(self, name="fashion-mnist"):
        self.name = name

    def data(self):
        dataset = load_dataset(self.name)
        return rows_of(dataset.train), rows_of(dataset.test)

    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip


def rows_of(source):
    """Images as float32 in [0, 1], (n, 1, 28, 28), and labels, int64 (n,)."""
    images, labels = source[np.arange(len(source))]
    return images.astype(np.float32) / 255, labels
