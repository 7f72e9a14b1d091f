"""A step in shards over all ranks: mean gradients and statistics, all losses, and each shard exactly once."""

import numpy as np
import pytest
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces import Batch, ShardLoss

NAN = float("nan")


def step_of(*shards, all_shards=()):
    """A step in which a rank computes these shards, in this order."""
    nothing = np.zeros(0), np.zeros(0, np.float32), 0.1, 7, np.zeros(0, np.int64)
    parts = tuple(Batch(*nothing, part=shard) for shard in shards)
    return Batch(*nothing, shards=parts, all_shards=all_shards)


def combined(*shards_by_rank, all_shards=(), values=(), groups=()):
    """What each rank combines, or its error, if ranks compute these shards. values: losses by shard; else its number.

    groups: attributes of each rank's group.
    """

    def of_rank(group):
        for name, value in (groups[group.rank] if groups else {}).items():
            setattr(group, name, value)
        sums, shards = ShardSums(group, 5, [(2,)]), shards_by_rank[group.rank]
        sums.begin(step_of(*shards, all_shards=all_shards), [])
        for shard in shards:
            sums.add(values[shard] if values else shard, [np.full(2, shard, np.float32)], [])
        try:
            return sums.combine(), group
        except TrainingError as error:
            return str(error), group

    return on_all_ranks(len(shards_by_rank), of_rank)


def test_every_rank_knows_all_losses_and_who_computed_them():
    expected = [ShardLoss(shard, rank, shard) for shard, rank in enumerate([1, 0, 2, 0, 1])]
    for result, _ in combined([3, 1], [0, 4], [2], all_shards=range(5)):
        assert result.losses == expected
        assert result.gradients[0].tolist() == [2, 2]


def test_losses_keep_their_bits_and_one_that_is_not_finite_stays_alone():
    values = [0.1, NAN, -1e-300, float("inf"), 1e300]
    for result, _ in combined([0, 1], [2], [4, 3], values=values):
        np.testing.assert_array_equal([loss.value for loss in result.losses], values)


def test_a_last_batch_has_shards_without_rows():
    for result, _ in combined([0], [4], [], all_shards=(0, 4)):
        assert [(loss.shard, loss.rank) for loss in result.losses] == [(0, 0), (4, 1)]


@pytest.mark.parametrize(
    ("shards_by_rank", "problem"),
    [
        (([0, 1], [1, 2], [3, 4]), "shard 1 of step 7 was computed by 2 ranks"),
        (([0, 1, 1], [2], [3, 4]), "shard 1 of step 7 was computed by 2 ranks"),
        (([0, 1], [2], [4]), "shard 3 of step 7 was computed by no rank"),
    ],
)
def test_a_shard_that_is_not_computed_once_ends_the_step_on_all_ranks(shards_by_rank, problem):
    for error, _ in combined(*shards_by_rank, all_shards=range(5)):
        assert isinstance(error, str) and problem in error


def test_the_ranks_agree_on_the_newest_membership_that_all_know():
    groups = [{"known_membership": number, "agreed_membership": 1} for number in (3, 2, 4)]
    assert [group.agreed_membership for _, group in combined([0], [1], [2], groups=groups)] == [2, 2, 2]


def test_gradients_are_means_over_all_shards_and_statistics_over_those_with_rows():
    step = ShardSums(SingleProcess(), 4, [(2,)])
    step.begin(step_of(0, 1), [np.array([1.0, 1.0]), np.array(7)])
    step.add(1.0, [np.array([1, 2], np.float32)], [np.array([2.0, 1.0]), np.array(8)])
    step.add(1.0, [np.array([3, 2], np.float32)], [np.array([4.0, 1.0]), np.array(8)])
    (gradient,), (mean, count), _ = step.combine()
    assert gradient.dtype == np.float32 and gradient.tolist() == [1, 1]
    assert mean.tolist() == [3, 1]
    assert count.dtype == np.int64 and count == 8


def test_arrays_without_dimensions_stay_arrays():
    step = ShardSums(SingleProcess(), 2, [()])
    step.begin(step_of(0), [np.array(1.0)])
    step.add(1.0, [np.array(4, np.float32)], [np.array(3.0)])
    (gradient,), (statistic,), _ = step.combine()
    assert isinstance(gradient, np.ndarray) and gradient == 2
    assert isinstance(statistic, np.ndarray) and statistic == 3


def test_statistics_that_no_shard_changes_keep_their_bits():
    mask = np.array([-np.inf, 0, 1e-40, 3e38, np.nan, -0.0], np.float32)
    numbers = np.array([2**60 + 1, -5])
    step = ShardSums(SingleProcess(), 3, [])
    step.begin(step_of(0, 1, 2), [mask, numbers])
    for _ in range(3):
        step.add(1.0, [], [mask.copy(), numbers + [0, 1]])
    _, (after, counted), _ = step.combine()
    assert after.tobytes() == mask.tobytes()
    assert counted.tolist() == [2**60 + 1, -4]
