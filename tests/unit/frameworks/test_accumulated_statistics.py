"""The parts of --accumulate are of unequal length where they must be, as padding would be in batch normalization."""

import numpy as np
import pytest
from support.learners import learner
from support.networks import shaped
from support.stack import FRAMEWORKS

from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, Flatten
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.tasks.user import make_task

RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.random((10, 2, 3, 4), np.float32), RANDOM.integers(0, 10, 10)
NETWORK = NetworkTarget(shaped(Network((BatchNorm(name="norm"), Flatten(), Dense(CLASSES))), (2, 3, 4)))
PARTS = {10: (3, 3, 2, 2), 9: (3, 2, 2, 2), 5: (2, 1, 1, 1), 8: (2, 2, 2, 2)}
"""Of --accumulate 4, by the number of rows."""


def torch_model():
    from torch import nn

    return nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(24, 10))


def mxnet_model():
    from mxnet.gluon import nn

    model = nn.HybridSequential()
    model.add(nn.BatchNorm(momentum=0.9, in_channels=2), nn.Flatten(), nn.Dense(10))
    return model


def tensorflow_model():
    from tensorflow.keras import Sequential, layers

    return Sequential([layers.BatchNormalization(axis=1, momentum=0.9), layers.Flatten(), layers.Dense(10)])


def task_of(framework):
    class Task:
        def data(self):
            return (IMAGES, LABELS), (IMAGES, LABELS)

        def model(self):
            return globals()[f"{framework}_model"]()

    return make_task("t.py:Task", Task)


def running_mean(weights):
    names = [name for name in weights if name.endswith(("running_mean", "moving_mean"))]
    return weights[names[0]]


@pytest.mark.parametrize("kind", ["network", "task"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_statistics_are_those_of_the_rows(framework, kind):
    made = learner(framework, NETWORK if kind == "network" else task_of(framework), accumulate=4, momentum=0.0)
    for step, (rows, parts) in enumerate(PARTS.items()):
        expected = running_mean(made.weights())
        for part in np.split(IMAGES[:rows], np.cumsum(parts)[:-1]):
            expected = 0.9 * expected + 0.1 * part.mean((0, 2, 3))
        weights = np.full(rows, 1 / rows, np.float32)
        made.train_step(Batch((IMAGES[:rows], LABELS[:rows]), weights, 0.1, step, np.arange(rows)))
        np.testing.assert_allclose(running_mean(made.weights()), expected, 1e-5, 1e-6, err_msg=f"{rows} rows")


@pytest.mark.parametrize("framework", ["torch", "mxnet"])
def test_fewer_rows_than_parts_make_fewer_parts(framework):
    made = learner(framework, NETWORK, accumulate=4, momentum=0.0)
    first = running_mean(made.weights()).copy()
    made.train_step(Batch((IMAGES[:2], LABELS[:2]), np.full(2, 0.5, np.float32), 0.1, 0, np.arange(2)))
    means = IMAGES[:2].mean((2, 3))
    np.testing.assert_allclose(running_mean(made.weights()), 0.81 * first + 0.09 * means[0] + 0.1 * means[1], 1e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_of_unequal_parts_are_those_of_all_rows(framework):
    """Without batch normalization, by a step of all rows at once."""
    plain = NetworkTarget(shaped(Network((Conv(2, 2), Flatten(), Dense(CLASSES))), (2, 3, 4)))
    found = []
    for parts in (1, 4):
        made = learner(framework, plain, accumulate=parts, momentum=0.0)
        for step, rows in enumerate((10, 7, 3)):
            weights = np.full(rows, 1 / rows, np.float32)
            made.train_step(Batch((IMAGES[:rows], LABELS[:rows]), weights, 0.5, step, np.arange(rows)))
        found.append(made.weights())
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, 1e-4, 1e-6, err_msg=name)
