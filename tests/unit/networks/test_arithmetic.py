"""Counted operations against PyTorch's own counter."""

import pytest
import torch
from support.networks import LENET, shaped

from hvdtrain.frameworks.torch.network import TorchNetwork
from hvdtrain.networks.arithmetic import training_flops
from hvdtrain.networks.registry import NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
def test_operations_are_those_that_pytorch_counts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the counter's import would set it for ever
    from torch.utils.flop_counter import FlopCounterMode

    network = shaped(name)
    images = torch.zeros(2, *network.input_shape)  # two, because batch normalization cannot train on one
    with FlopCounterMode(display=False) as counter:
        TorchNetwork(network)(images).sum().backward()
    assert 2 * training_flops(network) == counter.get_total_flops()


def test_lenet_by_hand():
    forward = [20 * 9 * 26 * 26, 50 * 20 * 25 * 9 * 9, 800 * 128, 128 * 10]
    assert training_flops(LENET) == 2 * (2 * forward[0] + 3 * sum(forward[1:]))
