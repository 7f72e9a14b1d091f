"""A task: two interleaving half circles, separated by a small network in PyTorch.

    hvdtrain launch local -n 2 -- python -m hvdtrain train examples/two_moons.py:TwoMoons --arg width=32 --lr 0.5

The test accuracy is 0.98 after 12 epochs.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import make_moons
from torch import nn

Rows = tuple[np.ndarray, np.ndarray]


class TwoMoons:
    """Points in the plane, float32 (n, 2), of two classes."""

    def __init__(self, width: int = 16, rows: int = 2000) -> None:
        self.width, self.rows = width, rows

    def data(self) -> tuple[Rows, Rows]:
        points, classes = make_moons(self.rows, noise=0.15, random_state=0)
        points, test = points.astype(np.float32), self.rows // 5
        return (points[test:], classes[test:]), (points[:test], classes[:test])

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, self.width), nn.Tanh(), nn.Linear(self.width, 2))
