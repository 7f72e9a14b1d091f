"""Tasks in MXNet, and mistaken ones."""

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

RANDOM = np.random.default_rng(3)
NUMBERS, KINDS = RANDOM.normal(size=(160, 4)).astype(np.float32), RANDOM.integers(0, 5, 160)
VALUES = (NUMBERS @ np.array([1, -2, 3, 0.5], np.float32) + KINDS).astype(np.float32)


def add_noise(rows, generators):
    """Augmentation: noise on the first array."""
    numbers, *others = rows
    return numbers + np.array([one.normal(0, 0.1, 4) for one in generators], np.float32), *others


class TwoInputs(gluon.Block):
    def __init__(self):
        super().__init__()
        self.of_kind, self.last, self.unused = nn.Embedding(5, 3), nn.Dense(1), nn.Dense(2)

    def forward(self, numbers, kinds):
        self.unused(numbers)
        return {"value": self.last(mx.nd.concat(numbers, self.of_kind(kinds), dim=1))[:, 0]}


class Regression:
    inputs = 2
    augment = staticmethod(add_noise)

    def data(self):
        rows = NUMBERS, KINDS, VALUES
        return tuple(array[:128] for array in rows), tuple(array[128:] for array in rows)

    def model(self):
        return TwoInputs()

    def losses(self, outputs, values):
        return (outputs["value"] - values) ** 2

    def metrics(self, outputs, values):
        return {"distance": (outputs["value"] - values).abs()}


class Classifier:
    """With batch normalization and random numbers."""

    augment = staticmethod(add_noise)

    def __init__(self, width=6):
        self.width = width

    def data(self):
        return (NUMBERS[:128], KINDS[:128]), (NUMBERS[128:], KINDS[128:])

    def model(self):
        block = nn.HybridSequential()
        block.add(nn.Dense(self.width), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(5))
        return block


class MeanLoss(Regression):
    def losses(self, outputs, values):
        return super().losses(outputs, values).mean()


class FailingLoss(Regression):
    def losses(self, outputs, values):
        return outputs["price"] - values  # the line that fails


class ListMetrics(Regression):
    def metrics(self, outputs, values):
        return [values]


class NoLoss(Regression):
    losses = None


class NoModel:
    data = Regression.data


class OneInput(Regression):
    inputs = 1


class Foreign(Regression):
    def model(self):
        return type("Sequential", (), {"__module__": "torch.nn.modules.container"})()
