"""Counted operations against PyTorch's own counter."""

import pytest
import torch

from hvdtrain.frameworks.torch.network import build_network
from hvdtrain.networks.arithmetic import training_flops
from hvdtrain.networks.registry import NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
def test_operations_are_those_that_pytorch_counts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the counter's import would set it for ever
    from torch.utils.flop_counter import FlopCounterMode

    network = NETWORKS[name]
    images = torch.zeros(1, *network.input_shape)
    with FlopCounterMode(display=False) as counter:
        build_network(network)(images).sum().backward()
    assert training_flops(network) == counter.get_total_flops()


def test_lenet_by_hand():
    forward = [20 * 9 * 26 * 26, 50 * 20 * 25 * 9 * 9, 800 * 128, 128 * 10]
    assert training_flops(NETWORKS["lenet"]) == 2 * (2 * forward[0] + 3 * sum(forward[1:]))
