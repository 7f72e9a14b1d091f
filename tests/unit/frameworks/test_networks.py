"""Networks in evaluation have the logits of NumPy; averages of weights (--ema) are those of NumPy, and are saved."""

import itertools

import numpy as np
import pytest
from support import mixed_networks
from support.in_process import command, train_here
from support.jobs import newest
from support.learners import learner
from support.networks import shaped
from support.numpy_network import numpy_logits
from support.random_networks import random_weights
from support.stack import FRAMEWORKS, INSTALLED

from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import STATISTICS, Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, Flatten
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training.state import averaged

SIZES = {"lenet": 129_068, "cifar_lenet": 62_006, "mlp": 203_530, "resnet20": 272_186}
"""Numbers of parameters."""


def test_numbers_of_parameters():
    assert {name: shaped(name).size for name in NETWORKS} == SIZES


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", [*NETWORKS, *mixed_networks.NETWORKS])
def test_logits_equal_a_numpy_reference(name):
    network = shaped(name if name in NETWORKS else mixed_networks.NETWORKS[name])
    images = np.random.default_rng(0).integers(0, 256, (16, *network.input_shape), dtype=np.uint8)
    expected = numpy_logits(network, random_weights(network, 0), images)
    module = [("mxnet", "module-single")] * ("mxnet" in INSTALLED)
    for framework, strategy in [*((name, "single") for name in INSTALLED), *module]:
        evaluated = learner(framework, NetworkTarget(network), strategy=strategy)
        evaluated.load(random_weights(network, 1))
        evaluated.logits(images)  # the next ones must not be those of these weights
        evaluated.load(random_weights(network, 0))
        logits = evaluated.logits(images)
        assert np.abs(logits - expected).max() < 1e-5 * max(np.abs(expected).max(), 1), (framework, strategy)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("side", [26, 9])  # with and without a last row that no window covers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_relu_and_average_pool_have_the_bits_of_pytorchs_own(side, dtype, layout):
    """Of values and gradients."""
    import torch

    from hvdtrain.frameworks.torch.network import relu_average_pool

    dtype = getattr(torch, dtype)
    images = torch.randn(4, 3, side, side).to(dtype, memory_format=getattr(torch, layout))
    results = []
    for pool in (
        lambda pixels: relu_average_pool(pixels, 2),
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.AvgPool2d(2)),
    ):
        pixels = images.clone().requires_grad_()
        pooled = pool(pixels.clone())
        pooled.backward(torch.linspace(-1, 1, pooled.numel()).view(pooled.shape).to(dtype))
        results.append((pooled, pixels.grad))
    (pooled, gradient), (expected, expected_gradient) = results
    assert torch.equal(pooled, expected) and torch.equal(gradient, expected_gradient)
    assert gradient.stride() == images.stride()


TARGET = NetworkTarget(shaped(Network((Conv(4, 3), BatchNorm(), Flatten(), Dense(CLASSES))), (1, 6, 6)))
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


def assert_same(actual, expected, tolerance=0.0):
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_averages_follow_the_weights(framework):
    """They are those of NumPy, leave training as it is, are evaluated, and come back from a checkpoint."""
    one, plain, resumed = (learner(framework, TARGET, on_nan="skip", ema=ema) for ema in (DECAY, 0, DECAY))
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
        assert_same(one.averages(), expected, 1e-5)
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


@pytest.mark.needs("torch")
def test_a_tied_parameter_has_its_average_under_each_name():
    """And one that is not trained has none."""
    from torch import nn

    from hvdtrain.frameworks.torch.network import trained_parameters
    from hvdtrain.frameworks.torch.optimizer import TorchAverages

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False))
    model[1].weight = model[0].weight
    averages = TorchAverages(0.9, model, trained_parameters(model))
    averages.update(0)
    arrays = averages.arrays()
    assert set(arrays) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    again = TorchAverages(0.9, model, trained_parameters(model))
    again.load(arrays)
    np.testing.assert_array_equal(again.arrays()["1.weight"], model[0].weight.detach().numpy())


def test_decayed_weights_with_nesterov_momentum_are_those_of_any_framework():
    """MXNet's own operator decays the momentum by the weight after the update."""
    target = NetworkTarget(shaped(Network((Flatten(), Dense(8), Dense(CLASSES))), (1, 4, 4)))
    images, labels = np.random.default_rng(0).random((16, 1, 4, 4), np.float32), np.arange(16) % 10
    options = {"nesterov": True, "momentum": 0.9, "weight_decay": 0.1, "no_decay": ("*.bias",)}
    of_frameworks = []
    for framework in INSTALLED:
        trained = learner(framework, target, **options)
        for step in range(4):
            trained.train_step(Batch((images, labels), np.full(16, 1 / 16, np.float32), 0.1, step, np.arange(16)))
        of_frameworks.append(trained.weights())
    for weights in of_frameworks[1:]:
        for name, value in of_frameworks[0].items():
            np.testing.assert_allclose(weights[name], value, 1e-4, 1e-6, err_msg=name)


def test_averages_are_saved_and_exported_and_move_between_frameworks(tmp_path):
    options = ("--ema", "0.9", "--lr", "0.02", "--epochs", "1", "--warmup-epochs", "0", "--device", "cpu")
    options += ("--batch-size", "128", "--max-steps")
    one, other = itertools.islice(itertools.cycle(INSTALLED), 2)
    whole = train_here(tmp_path, one, *options, "7", "--name", "whole")
    train_here(tmp_path, one, *options, "4", "--name", "part")
    saved = newest(whole)
    assert saved.averages.keys() == saved.weights.keys()
    for name, framework, tolerance in (("same", one, 0.0), ("other", other, 1e-5)):
        resume = ("--resume", str(tmp_path / "runs" / "part"), "--max-steps", "7", "--name", name)
        assert_same(newest(train_here(tmp_path, framework, *resume)).averages, saved.averages, tolerance)
    assert command(tmp_path, "export", str(whole), "model.onnx")[0] == 0
    content = (tmp_path / "model.onnx").read_bytes()
    assert saved.averages["conv1.bias"].tobytes() in content
    assert saved.weights["conv1.bias"].tobytes() not in content
