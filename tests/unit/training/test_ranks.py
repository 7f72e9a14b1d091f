"""The losses and times of all ranks, joined at a logging step, and what they agree on after ranks have changed."""

import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer
from hvdtrain.errors import TrainingError, WrongBits
from hvdtrain.interfaces.combining import ShardLoss
from hvdtrain.interfaces.learner import Checkpoint, OptimizerState, Position
from hvdtrain.runs.step_times import StepSeconds, to_record
from hvdtrain.training import consistency
from hvdtrain.training.audit import Auditor
from hvdtrain.training.ranks import IntervalCollector, RankInterval, RankStep, join, losses_of_rank, losses_of_shards
from hvdtrain.training.survival import Agreement, Handover, agree, hand_over

NAN, INF = float("nan"), float("inf")


def joined(*losses_by_rank, stop=(), due=(), times=()):
    """The interval of ranks with these losses, from step 8 on; ranks that were asked to stop, or to save; times."""

    def join_rank(group):
        losses = losses_of_rank(group.rank, list(enumerate(losses_by_rank[group.rank], start=8)))
        losses = losses._replace(stop_requested=group.rank in stop, checkpoint_due=group.rank in due)
        return join(group, losses._replace(times=times[group.rank]) if times else losses)

    intervals = on_all_ranks(len(losses_by_rank), join_rank)
    assert all(interval == intervals[0] for interval in intervals), "ranks must agree"
    return intervals[0]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([1], None),
        ([1, 1, 1], None),
        ([1, 2], "rank 1 differs from rank 0's"),
        ([1, 1, 2], "rank 2 differs from rank 0's"),
        ([2, 1, 1], "rank 0 differs from the others'"),
        ([2, 2, 1, 1], "rank 2 differs from rank 0's"),
        ([NAN, NAN], None),
    ],
)
def test_the_rank_is_named_whose_weights_differ_from_those_of_most_ranks(values, named):
    def check(group):
        weights = {"same": np.ones(3), "bias": np.full(2, values[group.rank])}
        try:
            return consistency.check_same_weights(group, weights, "after step 9", 7)
        except TrainingError as error:
            return error

    first, *others = map(str, on_all_ranks(len(values), check))
    assert all(text == first for text in others), "ranks must agree"
    assert named is None or f"after step 9: parameter bias of {named}" in first
    assert ("after step 7 they were identical" in first) == bool(named)


@pytest.mark.parametrize(
    ("losses", "mean", "not_finite"),
    [
        (([1.0, 2.0],), 1.5, None),
        (([1.0, 2.0], [3.0, 4.0]), 2.5, None),
        (([1.0, NAN, 2.0], [3.0, 4.0, NAN]), 2.5, RankStep(0, 9, 0)),
        (([1.0, 1.0], [1.0, NAN], [NAN, 1.0]), 1.0, RankStep(2, 8, 2)),
        (([1.0, 1.0], [INF, NAN], [NAN, 1.0]), 1.0, RankStep(1, 8, 1)),
        (([NAN], [1.0]), 1.0, RankStep(0, 8, 0)),
        (([NAN], [NAN]), NAN, RankStep(0, 8, 0)),
        (([], []), NAN, None),
    ],
)
def test_mean_leaves_out_what_is_not_finite_of_which_the_first_is_named(losses, mean, not_finite):
    interval = joined(*losses)
    np.testing.assert_equal((interval.loss, interval.not_finite, interval.stopping_rank), (mean, not_finite, None))


def test_what_travels_with_the_losses():
    """Times of all ranks; rank 0 decides on checkpoints, and the first rank that was asked stops."""
    times = [StepSeconds(1.23456, 0.5, 0.0), StepSeconds(0.000123456, 0.25, 12.5)]
    taken = joined([1.0], [3.0], times=times).times
    assert taken == times
    assert to_record(taken) == {"compute_s": [1.235, 0.0001235], "communicate_s": [0.5, 0.25], "data_s": [0.0, 12.5]}
    unknown = [times[0], times[1]._replace(communicate=None)]
    assert to_record(joined([1.0], [3.0], times=unknown).times)["communicate_s"] is None
    assert [joined([1.0], [1.0], due=due).checkpoint_due for due in ({0}, {1})] == [True, False]
    assert [joined([1.0], [1.0], [1.0], stop=stop).stopping_rank for stop in ({1, 2}, {0})] == [1, 0]


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_mean_loss_of_shards_does_not_depend_on_the_ranks(ranks):
    """Two steps of five shards; one loss is not finite, and one shard has no rows and so no loss."""
    values = [[0.1, 0.2, 0.3, NAN, 1e16], [0.7, 1.1, -1e16, 0.9]]
    steps = [
        (step, [ShardLoss(shard, shard * ranks // 5, value) for shard, value in enumerate(of_step)])
        for step, of_step in enumerate(values, 3)
    ]

    def interval(group):
        return join(group, losses_of_shards(steps, 5) if group.rank == 0 else RankInterval())

    for joined_losses in on_all_ranks(ranks, interval):
        assert joined_losses.loss == math.fsum([0.1, 0.2, 0.3, 0.7, 1.1, 0.9]) / 9
        assert joined_losses.not_finite == RankStep(3 * ranks // 5, 3, 3)


NEW, BEHIND = (), (6, True)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([NEW, NEW], Agreement(-1, True, True)),  # nobody has begun
        ([(7,), (7,)], Agreement(0, True, True)),
        ([(7,), (7, False)], Agreement(0, False, True)),  # the evaluation is done again
        ([(7,), (7,), NEW], Agreement(0, True, False)),
        ([BEHIND, (7, False)], Agreement(1, False, False)),
        ([BEHIND, (7,), NEW], Agreement(1, False, False)),
        ([NEW, (0,), NEW], Agreement(1, True, False)),  # rank 0 was cut off while the others began
    ],
)
def test_the_furthest_step_counts(standings, expected):
    results = on_all_ranks(len(standings), lambda group: agree(group, *standings[group.rank]))
    assert results == [expected] * len(standings)


@pytest.mark.parametrize("root", [0, 1, 2])
def test_one_rank_hands_over_all_that_the_others_need(root):
    weights = {"w": np.arange(3.0), "empty": np.zeros((0, 2))}
    optimizer = OptimizerState({"m/w": np.ones((1, 3), np.float32)}, extra={"count": 3})
    position = Position(epoch=1, step=7, global_batch=8)
    state = Checkpoint(position, "lenet", {}, "mxnet", "sgd", "data", weights=weights, optimizer=optimizer)
    given = Handover(state, Path("runs/x"), {"--lr": 0.1}, 2, [False, [[6, [[0, 1, 0.5]]]]])
    for got in on_all_ranks(3, lambda group: hand_over(group, given if group.rank == root else None, root)):
        assert got[1:] == given[1:]
        assert got.state.position == state.position
        assert got.state.optimizer.extra == {"count": 3}
        np.testing.assert_equal(got.state.weights, state.weights)
        np.testing.assert_equal(got.state.optimizer.arrays, state.optimizer.arrays)


def ranks_of(*numbers):
    group = SimpleNamespace(rank=0, size=len(numbers), ranks=numbers)
    return IntervalCollector(SimpleNamespace(group=group), None, None, None)


def test_losses_stay_until_the_next_step_as_ranks_that_change_join_them_again():
    ranks, other = ranks_of(0, 1), ranks_of(0, 1)
    ranks.add(0, [ShardLoss(0, 0, 0.5), ShardLoss(1, 1, 0.25)])
    ranks.add(1, [ShardLoss(0, 0, 0.75)])
    assert ranks.losses == [False, [(0, [(0, 0, 0.5), (1, 1, 0.25)]), (1, [(0, 0, 0.75)])]]
    other.losses = [True, ranks.losses[1]]
    assert other.losses == [True, ranks.losses[1]]
    other.add(2, [ShardLoss(0, 1, 1.0)])
    assert other.losses == [False, [(2, [(0, 1, 1.0)])]]


def test_no_rank_ends_before_rank_0_has_recorded_that_bits_were_wrong():
    done = []

    def record(*_, **values):
        time.sleep(0.1)
        done.append(values["wrong"])

    def decide(group):
        run = SimpleNamespace(group=group, runtime=SimpleNamespace(on_wrong_bits="stop"))
        reporter = SimpleNamespace(record=record if group.rank == 0 else lambda *_, **__: None)
        with pytest.raises(WrongBits):
            difference = ShardsDiffer(5, 1, {1: 7, 2: 8})
            Auditor(run, None, reporter).decide(Position(1, 5), difference, ShardHashes([8, 7, 8]))
        done.append("ended")

    on_all_ranks(3, decide)
    assert done == [1, "ended", "ended", "ended"]
