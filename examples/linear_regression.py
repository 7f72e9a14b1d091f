"""A task: linear regression with its own loss, for --strategy ddp, dataparallel and all others.

In two processes, by DistributedDataParallel:
    hvdtrain train -n 2 examples/linear_regression.py:Regression --strategy ddp
On two devices of one process, by DataParallel:
    hvdtrain train examples/linear_regression.py:Regression --strategy dataparallel --devices 2

Both end with the same weights, and an absolute error of 0.0075 on the test rows: that of the noise.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

Rows = tuple[np.ndarray, np.ndarray]


class Regression:
    """y = 2 x1 - 3.4 x2 + 4.2 + noise, the example of Dive into Deep Learning, "Linear Regression"."""

    def data(self) -> tuple[Rows, Rows]:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(1200, 2)).astype(np.float32)
        noise = generator.normal(scale=0.01, size=1200)
        y = (x @ [2, -3.4] + 4.2 + noise).astype(np.float32)
        return (x[:1000], y[:1000]), (x[1000:], y[1000:])

    def model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def losses(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - y) ** 2 / 2

    def metrics(self, outputs: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"absolute error": (outputs[:, 0] - y).abs()}
