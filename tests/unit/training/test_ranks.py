"""The losses and times of all ranks, joined at a logging step."""

import math

import numpy as np
import pytest
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.interfaces import ShardLoss
from hvdtrain.runs.step_times import StepTime, to_record
from hvdtrain.training.ranks import Losses, RankStep, join, losses_of_rank, losses_of_shards


def joined(*losses_by_rank, stop=(), due=(), times=()):
    """The interval of ranks with these losses, from step 8 on; ranks that were asked to stop, or to save; times."""

    def join_rank(group):
        losses = losses_of_rank(group.rank, list(enumerate(losses_by_rank[group.rank], start=8)))
        taken = {"times": times[group.rank]} if times else {}
        return join(group, losses, stop_requested=group.rank in stop, checkpoint_due=group.rank in due, **taken)

    intervals = on_all_ranks(len(losses_by_rank), join_rank)
    assert all(interval == intervals[0] for interval in intervals), "ranks must agree"
    return intervals[0]


NAN = float("nan")


def test_mean_loss_of_one_process():
    interval = join(SingleProcess(), losses_of_rank(0, [(0, 1.0), (1, 2.0)]))
    assert (interval.loss, interval.not_finite, interval.stopping_rank) == (1.5, None, None)


def test_mean_loss_over_ranks():
    assert joined([1.0, 2.0], [3.0, 4.0]).loss == 2.5


def test_times_of_all_ranks_travel_with_the_losses():
    times = [StepTime(1.5, 0.5, 0.25), StepTime(1.0, 1.0, 0.125)]
    assert joined([1.0], [3.0], times=times).times == times
    unknown = [times[0], times[1]._replace(communicate=None)]
    assert [time.communicate for time in joined([1.0], [3.0], times=unknown).times] == [None, None]


def test_records_have_a_number_for_each_rank():
    times = [StepTime(1.23456, 0.5, 0.0), StepTime(0.000123456, 0.25, 12.5)]
    expected = {"compute_s": [1.235, 0.0001235], "communicate_s": [0.5, 0.25], "data_s": [0.0, 12.5]}
    assert to_record(joined([1.0], [3.0], times=times).times) == expected


def test_mean_loss_leaves_out_what_is_not_finite():
    assert joined([1.0, NAN, 2.0], [3.0, 4.0, NAN]).loss == 2.5
    assert np.isnan(joined([NAN], [NAN]).loss) and np.isnan(joined([], []).loss)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (([1.0, 1.0], [1.0, NAN], [NAN, 1.0]), RankStep(2, 8, 2)),
        (([1.0, 1.0], [float("inf"), NAN], [NAN, 1.0]), RankStep(1, 8, 1)),
        (([1.0, 1.0], [1.0, 1.0], [1.0, 1.0]), None),
    ],
)
def test_first_loss_that_is_not_finite_is_named(losses, expected):
    assert joined(*losses).not_finite == expected


def test_step_0_of_rank_0_can_be_named():
    assert join(SingleProcess(), losses_of_rank(0, [(0, NAN)])).not_finite == RankStep(0, 0, 0)


def test_rank_0_decides_on_checkpoints():
    assert joined([1.0], [1.0], due={0}).checkpoint_due
    assert not joined([1.0], [1.0], due={1}).checkpoint_due


def test_first_rank_that_was_asked_to_stop():
    assert joined([1.0], [1.0], [1.0], stop={1, 2}).stopping_rank == 1
    assert joined([1.0], [1.0], stop={0}).stopping_rank == 0


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
