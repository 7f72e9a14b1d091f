"""Steps in shards in PyTorch: on any ranks, and what a user's model may have besides parameters."""

import os
from unittest import mock

import numpy as np
import pytest
import torch
from support.rank_threads import on_all_ranks
from support.shard_steps import IMAGES, MOVED, NETWORK, SHARDS, assert_same, steps
from torch import nn

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.frameworks.torch.learner import TorchLearner
from hvdtrain.frameworks.torch.network import buffer_arrays, load_buffers
from hvdtrain.frameworks.torch.strategies import TorchStrategy


@pytest.fixture(autouse=True)
def own_environment():
    with mock.patch.dict(os.environ):  # a learner sets variables of its framework
        yield


def train_on_ranks(assignments):
    """Weights, optimizer state and the losses of all shards on ranks to which shards are assigned in turn."""
    config = Config(strategy="single", lr=0.1, nesterov=True, weight_decay=0.01, clip_norm=0.5, shards=SHARDS)

    def train(group):
        strategy = TorchStrategy(config, RuntimeOptions(device="cpu"), group)
        learner = TorchLearner(NETWORK, NETWORK.initial_weights(config), strategy)
        cuts = [assignment.cut(group.rank) for assignment in assignments]
        losses = [float(loss) for batch in steps(IMAGES, *cuts) for loss in learner.train_step(batch)]
        return learner.weights() | learner.optimizer_state().arrays, losses

    results = on_all_ranks(len(assignments[0].by_rank), train)
    for arrays, losses in results[1:]:
        assert_same(arrays, results[0][0])
        assert losses == results[0][1]
    return results[0]


@pytest.mark.guarantee("same-bits")
def test_shards_that_move_between_steps_have_the_same_bits():
    weights, losses = train_on_ranks([Assignment.contiguous(1, SHARDS)])
    other_weights, other_losses = train_on_ranks(MOVED)
    assert_same(other_weights, weights)
    assert other_losses == losses


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rotations", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("mask", torch.tensor([0.0, -np.inf]))
        self.register_buffer("large", torch.tensor([2**60 + 1]))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("short", torch.tensor([1.5], dtype=torch.bfloat16))


def test_buffers_of_all_types_keep_their_bits():
    model = Buffers()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    arrays = buffer_arrays(model)
    assert {array.dtype for array in arrays} == {np.dtype(np.float64), np.dtype(np.int64)}
    for buffer in model.buffers():
        buffer.zero_()
    load_buffers(model, arrays)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
