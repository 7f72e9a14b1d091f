"""From where training goes on after the ranks have changed, and what a rank gets from another one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.rank_threads import on_all_ranks

from hvdtrain.interfaces import Checkpoint, OptimizerState, Position, ShardLoss
from hvdtrain.training.heartbeats import Heartbeat, Observation
from hvdtrain.training.ranks import Ranks
from hvdtrain.training.survival import Agreement, Handover, Standing, agree, hand_over

NEW, BEHIND = Standing(), Standing(6, True)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([NEW, NEW], Agreement(-1, -1, True, True)),  # nobody has begun
        ([Standing(7), Standing(7)], Agreement(0, 7, True, True)),
        ([Standing(7), Standing(7, False)], Agreement(0, 7, False, True)),  # the evaluation is done again
        ([Standing(7), Standing(7), NEW], Agreement(0, 7, True, False)),
        ([BEHIND, Standing(7, False)], Agreement(1, 7, False, False)),
        ([BEHIND, Standing(7), NEW], Agreement(1, 7, False, False)),
        ([NEW, Standing(0), NEW], Agreement(1, 0, True, False)),  # rank 0 was cut off while the others began
    ],
)
def test_the_furthest_step_counts(standings, expected):
    results = on_all_ranks(len(standings), lambda group: agree(group, standings[group.rank]))
    assert results == [expected] * len(standings)


@pytest.mark.parametrize("root", [0, 1, 2])
def test_one_rank_hands_over_all_that_the_others_need(root):
    state = Checkpoint(
        weights={"w": np.arange(3.0), "empty": np.zeros((0, 2))},
        optimizer=OptimizerState({"m/w": np.ones((1, 3), np.float32)}, extra={"count": 3}),
        position=Position(epoch=1, step=7, global_batch=8),
        model="lenet",
        network={},
        framework="mxnet",
        optimizer_name="sgd",
        data="data",
    )
    given = Handover(state, Path("runs/x"), {"--lr": 0.1}, 2, [False, [[6, [[0, 1, 0.5]]]]])
    for got in on_all_ranks(3, lambda group: hand_over(group, given if group.rank == root else None, root)):
        assert got[1:] == given[1:]
        assert got.state.position == state.position
        assert got.state.optimizer.extra == {"count": 3}
        for received, sent in [
            (got.state.weights, state.weights),
            (got.state.optimizer.arrays, state.optimizer.arrays),
        ]:
            assert received.keys() == sent.keys()
            assert all(np.array_equal(received[name], sent[name]) for name in sent)


def ranks_of(*numbers):
    group = SimpleNamespace(rank=0, size=len(numbers), ranks=numbers)
    return Ranks(SimpleNamespace(group=group), None, None, None)


def test_losses_stay_until_the_next_step_as_ranks_that_change_join_them_again():
    ranks = ranks_of(0, 1)
    ranks.add(0, [ShardLoss(0, 0, 0.5), ShardLoss(1, 1, 0.25)])
    ranks.add(1, [ShardLoss(0, 0, 0.75)])
    assert ranks.losses == [False, [(0, [(0, 0, 0.5), (1, 1, 0.25)]), (1, [(0, 0, 0.75)])]]
    ranks._is_joined = True
    other = ranks_of(0, 1)
    other.losses = ranks.losses
    assert other.losses == ranks.losses
    for one in (ranks, other):
        one.add(2, [ShardLoss(0, 1, 1.0)])
        assert one.losses == [False, [(2, [(0, 1, 1.0)])]]


def test_a_rank_that_never_came_is_awaited_before_those_that_are_behind():
    def beat(rank, step):
        return Heartbeat(rank, 100 + rank, "node", step, "change of ranks", True, 40.0, 5)

    beats = {0: beat(0, 7), 1: beat(1, 6)}
    assert Observation(beats, frozenset()).awaited([0, 1, 2]) == [2]
    assert Observation(beats, frozenset()).awaited([0, 1]) == [1]
    assert Observation(beats, frozenset({0})).awaited([0, 1, 2]) == [0]
    assert Observation({0: beat(0, 7), 1: beat(1, 7)}, frozenset()).awaited([0, 1]) == []
