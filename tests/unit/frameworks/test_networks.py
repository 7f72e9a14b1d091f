"""Networks in evaluation: the logits of every framework and style are those of NumPy."""

import numpy as np
import pytest
import torch
from support import mixed_networks
from support.learners import learner
from support.networks import shaped
from support.numpy_network import numpy_logits, random_weights
from support.stack import FRAMEWORKS

from hvdtrain.frameworks.torch.network import relu_average_pool
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.tasks.target import NetworkTarget

SIZES = {"lenet": 129_068, "cifar_lenet": 62_006, "mlp": 203_530, "resnet20": 272_186}
"""Numbers of parameters."""


def test_numbers_of_parameters():
    assert {name: shaped(name).size for name in NETWORKS} == SIZES


@pytest.mark.parametrize("name", [*NETWORKS, *mixed_networks.NETWORKS])
def test_logits_equal_a_numpy_reference(name):
    network = shaped(name if name in NETWORKS else mixed_networks.NETWORKS[name])
    images = np.random.default_rng(0).integers(0, 256, (16, *network.input_shape), dtype=np.uint8)
    expected = numpy_logits(network, random_weights(network), images)
    for framework, api in [*((framework, "auto") for framework in FRAMEWORKS), ("mxnet", "module")]:
        evaluated = learner(framework, NetworkTarget(network), api=api)
        evaluated.load(random_weights(network, 1))
        evaluated.logits(images)  # the next ones must not be those of these weights
        evaluated.load(random_weights(network))
        logits = evaluated.logits(images)
        assert np.abs(logits - expected).max() < 1e-5 * max(np.abs(expected).max(), 1), (framework, api)


@pytest.mark.parametrize("side", [26, 9])  # with and without a last row that no window covers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_relu_and_average_pool_have_the_bits_of_pytorchs_own(side, dtype, layout):
    """Of values and gradients."""
    images = torch.randn(4, 3, side, side).to(dtype, memory_format=layout)
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
