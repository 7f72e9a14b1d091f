"""The moving average of weights, in any framework: compared with NumPy's after steps of which one is skipped."""

import os
from unittest import mock

import numpy as np

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import Batch
from hvdtrain.networks.description import STATISTICS, Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, Flatten
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training.averages import averaged
from support.networks import shaped

NETWORK = shaped(Network((Conv(4, 3), BatchNorm(), Flatten(), Dense(CLASSES))), (1, 6, 6))
DECAY, ROWS, STEPS, SKIPPED = 0.8, 8, 30, (0, 3)
"""Of the steps, the first ones have a smaller decay; those that are skipped have a loss that is NaN."""


def steps():
    """Batches of random images."""
    random = np.random.default_rng(3)
    for step in range(STEPS):
        images = random.integers(0, 256, (ROWS, 1, 6, 6), np.uint8)
        labels, numbers = random.integers(0, 10, ROWS), np.arange(ROWS)
        weights = np.full(ROWS, np.nan if step in SKIPPED else 1 / ROWS, np.float32)
        yield Batch((images, labels), weights, 0.1, step, numbers)


def learner(framework, **options):
    """A learner of NETWORK on one process."""
    config = Config(framework=framework, strategy="single", on_nan="skip", **options)
    target = NetworkTarget(NETWORK)
    return build_learner(config, target, target.initial_weights(config), RuntimeOptions(device="cpu", quiet=True))


def assert_averages(framework):
    """Whether averages are those of NumPy, leave training as it is, are evaluated, and come back from a checkpoint."""
    with mock.patch.dict(os.environ):  # which frameworks change
        one, plain, resumed = learner(framework, ema=DECAY), learner(framework), learner(framework, ema=DECAY)
    expected = {}
    for batch in steps():
        one.train_step(batch)
        plain.train_step(batch)
        weights = one.weights()
        assert_same(weights, plain.weights())
        if batch.step not in SKIPPED:
            share = 1 - min(DECAY, (1 + batch.step) / (10 + batch.step)) if expected else 1.0
            trained = {name: value for name, value in weights.items() if not name.endswith(STATISTICS)}
            expected = {
                name: expected.get(name, 0) + share * (v - expected.get(name, 0)) for name, v in trained.items()
            }
        assert one.averages().keys() == expected.keys()
        for name, average in one.averages().items():
            np.testing.assert_allclose(average, expected[name], atol=1e-5, err_msg=f"{name} at step {batch.step}")
        if batch.step == STEPS // 2:
            resumed.load({name: value.copy() for name, value in weights.items()})
            resumed.load_optimizer_state(one.optimizer_state())
            resumed.load_averages(one.averages())
        elif batch.step > STEPS // 2:
            resumed.train_step(batch)
    assert one.skipped == len(SKIPPED)
    assert_same(resumed.averages(), one.averages())
    assert max(abs(expected[name] - weights[name]).max() for name in expected) > 0.01
    before, averages = {name: value.copy() for name, value in weights.items()}, one.averages()
    with averaged(one):
        assert_same(one.weights(), before | averages)
    assert_same(one.weights(), before)
    assert_same(one.averages(), averages)
    one.load_averages({})
    assert one.averages() == {}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
