"""The rule by which gradients share messages, and launchers that Horovod does not detect."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import LENET, shaped

from hvdtrain.collectives import horovod
from hvdtrain.collectives.groups import single_process
from hvdtrain.collectives.horovod import HorovodGroup, choose_count, gradient_groups, split
from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Dense, Flatten
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.system import rank_info

SIZES = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=60)
ROWS = 128
MB = 1_000_000


def spread_over(total, gradients=400):
    """That many gradients of equal size."""
    return [total // 4 // gradients] * gradients


@given(SIZES, st.data())
def test_each_gradient_is_in_one_group_and_groups_are_balanced(sizes, data):
    count = data.draw(st.integers(1, len(sizes)))
    lengths = split(sizes, count)
    assert len(lengths) == count
    assert sum(lengths) == len(sizes)
    assert min(lengths) >= 1
    ends = [0, *itertools.accumulate(lengths)]
    groups = [sum(sizes[begin:end]) for begin, end in itertools.pairwise(ends)]
    assert max(groups) <= sum(sizes) / count + max(sizes)
    assert split(sizes, count) == lengths
    assert split([4, 0], 1) == [2] and split([0, 0], 2) == [1, 1], "parameters without elements are in groups"


def step_grows_by(groups, total, rows):
    """The time that a step grows by: each group starts when its gradients exist and the group before it is sent."""
    transfer_s, backward_s = total / horovod.BANDWIDTH, total * rows / horovod.FLOPS
    sent = 0.0
    for i in range(groups):
        ready = backward_s * (i + 1) / groups
        sent = max(ready, sent) + transfer_s / groups
    return groups * horovod.MESSAGE_S + sent - backward_s


@pytest.mark.parametrize("rows", [1, 8, 40, 128, 1024])
@pytest.mark.parametrize("total", [MB, 10 * MB, 100 * MB, 600 * MB])
def test_the_chosen_number_is_the_best_of_a_simulated_step(total, rows):
    chosen = choose_count(spread_over(total), 4, rows)
    times = [step_grows_by(groups, total, rows) for groups in range(1, 200)]
    assert times[chosen - 1] <= min(times) * 1.05 + horovod.MESSAGE_S / 2


def sizes_of(network):
    """Number of elements of each parameter, in the order of the layers."""
    return {name: math.prod(shape) for name, shape in network.parameters()}


def test_built_in_networks_are_one_message():
    for model in NETWORKS:
        config = Config(model=model, batch_size=256)
        sizes = sizes_of(shaped(model))
        assert gradient_groups(config, sizes, 2) == [list(reversed(sizes))]


def test_a_large_network_is_several_messages_beginning_with_the_last_layer():
    sizes = sizes_of(shaped(Network((Flatten(), *(Dense(1024) for _ in range(25)), Dense(CLASSES)))))
    groups = gradient_groups(Config(batch_size=256), sizes, 2)
    assert 8 <= len(groups) <= 16
    order = [name for names in groups for name in names]
    assert order == list(reversed(sizes))
    by_group = [sum(sizes[name] for name in names) for names in groups]
    assert max(by_group) <= 2.5 * np.mean(by_group)
    assert len(gradient_groups(Config(batch_size=256, compression="fp16"), sizes, 2)) < len(groups)
    assert len(gradient_groups(Config(batch_size=256, accumulate=64), sizes, 2)) < len(groups)


def test_a_given_number_of_groups_is_used():
    sizes = sizes_of(LENET)
    assert [len(gradient_groups(Config(groups=count), sizes, 2)) for count in range(1, 9)] == list(range(1, 9))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "sees 1: it was not built for that launcher"),  # as MPICH sets them
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "torchrun started 2 processes, but Horovod sees 1"),
    ],
)
def test_a_launcher_that_horovod_does_not_detect(variables, message, monkeypatch):
    monkeypatch.setenv(rank_info.GLOO_TIMEOUT, "1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    alone = SimpleNamespace(init=lambda: None, size=lambda: 1)
    with pytest.raises(UserError, match=message):
        HorovodGroup(alone, None, None)
    with pytest.raises(UserError, match="started 2 processes, but with --strategy single each would train alone"):
        single_process("single")
