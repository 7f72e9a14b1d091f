"""The losses and times of all ranks, joined at a logging step."""

import math

import numpy as np
import pytest
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.interfaces import ShardLoss
from hvdtrain.runs.step_times import StepTime, to_record
from hvdtrain.training.ranks import Losses, RankStep, join, losses_of_rank, losses_of_shards

NAN, INF = float("nan"), float("inf")


def joined(*losses_by_rank, stop=(), due=(), times=()):
    """The interval of ranks with these losses, from step 8 on; ranks that were asked to stop, or to save; times."""

    def join_rank(group):
        losses = losses_of_rank(group.rank, list(enumerate(losses_by_rank[group.rank], start=8)))
        taken = {"times": times[group.rank]} if times else {}
        return join(group, losses, stop_requested=group.rank in stop, checkpoint_due=group.rank in due, **taken)

    intervals = on_all_ranks(len(losses_by_rank), join_rank)
    assert all(interval == intervals[0] for interval in intervals), "ranks must agree"
    return intervals[0]


@pytest.mark.parametrize(
    ("losses", "mean", "not_finite"),
    [
        (([1.0, 2.0],), 1.5, None),
        (([1.0, 2.0], [3.0, 4.0]), 2.5, None),
        (([1.0, NAN, 2.0], [3.0, 4.0, NAN]), 2.5, RankStep(0, 9, 0)),
        (([1.0, 1.0], [1.0, NAN], [NAN, 1.0]), 1.0, RankStep(2, 8, 2)),
        (([1.0, 1.0], [INF, NAN], [NAN, 1.0]), 1.0, RankStep(1, 8, 1)),
        (([NAN], [1.0]), 1.0, RankStep(0, 8, 0)),
    ],
)
def test_mean_leaves_out_what_is_not_finite_of_which_the_first_is_named(losses, mean, not_finite):
    interval = joined(*losses)
    assert (interval.loss, interval.not_finite, interval.stopping_rank) == (mean, not_finite, None)


def test_no_finite_loss_and_step_0_of_rank_0():
    assert np.isnan(joined([NAN], [NAN]).loss) and np.isnan(joined([], []).loss)
    assert join(SingleProcess(), losses_of_rank(0, [(0, NAN)])).not_finite == RankStep(0, 0, 0)


def test_times_of_all_ranks_travel_with_the_losses_and_have_a_number_each_in_records():
    times = [StepTime(1.23456, 0.5, 0.0), StepTime(0.000123456, 0.25, 12.5)]
    taken = joined([1.0], [3.0], times=times).times
    assert taken == times
    assert to_record(taken) == {"compute_s": [1.235, 0.0001235], "communicate_s": [0.5, 0.25], "data_s": [0.0, 12.5]}
    unknown = [times[0], times[1]._replace(communicate=None)]
    assert [time.communicate for time in joined([1.0], [3.0], times=unknown).times] == [None, None]


def test_rank_0_decides_on_checkpoints_and_the_first_rank_that_was_asked_stops():
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
        return join(group, losses_of_shards(steps, 5) if group.rank == 0 else Losses())

    for joined_losses in on_all_ranks(ranks, interval):
        assert joined_losses.loss == math.fsum([0.1, 0.2, 0.3, 0.7, 1.1, 0.9]) / 9
        assert joined_losses.not_finite == RankStep(3 * ranks // 5, 3, 3)
