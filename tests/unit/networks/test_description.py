"""What follows from the description of a network."""

import pytest
import torch
from support.networks import LENET, shaped

from hvdtrain.frameworks.torch.network import TorchNetwork
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Conv, Dense, Flatten, Pool, Relu
from hvdtrain.networks.registry import NETWORKS


@pytest.mark.parametrize(("name", "used"), [("lenet", (26, 26)), ("cifar_lenet", (32, 32))])
def test_used_pixels_of_the_networks(name, used):
    assert shaped(name).used_pixels == used


def test_used_pixels_of_an_image_that_is_not_square():
    network = Network((Conv(4, 2), Relu(), Pool("max", 3), Flatten(), Dense(CLASSES)))
    assert shaped(network, (3, 8, 12)).used_pixels == (7, 10)


@pytest.mark.parametrize("name", NETWORKS)
def test_operations_are_those_that_pytorch_counts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the counter's import would set it for ever
    from torch.utils.flop_counter import FlopCounterMode

    network = shaped(name)
    images = torch.zeros(2, *network.input_shape)  # two, because batch normalization cannot train on one
    with FlopCounterMode(display=False) as counter:
        TorchNetwork(network)(images).sum().backward()
    assert 2 * network.training_flops == counter.get_total_flops()


def test_operations_of_lenet_by_hand():
    forward = [20 * 9 * 26 * 26, 50 * 20 * 25 * 9 * 9, 800 * 128, 128 * 10]
    assert LENET.training_flops == 2 * (2 * forward[0] + 3 * sum(forward[1:]))
