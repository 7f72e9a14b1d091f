"""Steps in shards: the means of gradients and statistics, what ranks report, and audits."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.audits import AuditVerdict, ShardHashes, ShardsDiffer, choose, hash_shard, judge
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces.combining import Gradients, ShardLoss, type_of
from hvdtrain.interfaces.reading import Audit, Batch

NAN = float("nan")
NOTHING = np.zeros(0), np.zeros(0, np.float32), 0.1, 7, np.zeros(0, np.int64)
PAIR = (type_of("float32", (2,)),)


def step_of(*shards, by_rank=None):
    """A step in which a rank computes these shards, in this order. by_rank: those of all ranks; else it is alone."""
    parts = tuple(Batch(*NOTHING, part=shard) for shard in shards)
    return Batch(*NOTHING, shards=parts, by_rank=by_rank or (shards,))


def combined(*shards_by_rank, expected=None, values=(), groups=()):
    """What each rank combines, or its error, if ranks compute these shards. values: losses by shard; else its number.

    expected: the shards that ranks should compute, if they are others. groups: attributes of each rank's group.
    """
    by_rank = tuple(tuple(sorted(shards)) for shards in expected or shards_by_rank)

    def of_rank(group):
        for name, value in (groups[group.rank] if groups else {}).items():
            setattr(group, name, value)
        sums, shards = ShardSums(group, 5, PAIR), shards_by_rank[group.rank]
        sums.begin(step_of(*shards, by_rank=by_rank), [])
        for shard in shards:
            sums.add(Gradients(values[shard] if values else shard, [np.full(2, shard, np.float32)], []))
        try:
            return sums.combine(), group
        except TrainingError as error:
            return str(error), group

    return on_all_ranks(len(shards_by_rank), of_rank)


def test_every_rank_knows_all_losses_and_who_computed_them():
    expected = [ShardLoss(shard, rank, shard) for shard, rank in enumerate([1, 0, 2, 0, 1])]
    for result, _ in combined([3, 1], [0, 4], [2]):
        assert result.loss == expected
        assert result.arrays[0].tolist() == [2, 2]


def test_losses_keep_their_bits_and_one_that_is_not_finite_stays_alone():
    values = [0.1, NAN, -1e-300, float("inf"), 1e300]
    for result, _ in combined([0, 1], [2], [4, 3], values=values):
        np.testing.assert_array_equal([loss.value for loss in result.loss], values)


def test_a_last_batch_has_shards_without_rows():
    for result, _ in combined([0], [4], []):
        assert [(loss.shard, loss.rank) for loss in result.loss] == [(0, 0), (4, 1)]
        assert result.arrays[0].tolist() == [np.float32(0.8)] * 2, "the third rank takes part"


@pytest.mark.parametrize(
    ("shards_by_rank", "problem"),
    [
        (([0, 1], [1, 2], [3, 4]), "rank 1 computed shard 1 of step 7 1 time(s) instead of 0"),
        (([0, 1, 1], [2], [3, 4]), "rank 0 computed shard 1 of step 7 2 time(s) instead of 1"),
        (([0, 1], [2], [4]), "rank 2 computed shard 3 of step 7 0 time(s) instead of 1"),
        (([0, 1], [], [3, 4]), "rank 1 computed shard 2 of step 7 0 time(s) instead of 1"),
        (([0, 2], [1], [3, 4]), "rank 0 computed shard 1 of step 7 0 time(s) instead of 1"),
    ],
)
def test_a_shard_that_is_not_computed_once_by_its_rank_ends_the_step_on_all_ranks(shards_by_rank, problem):
    for error, _ in combined(*shards_by_rank, expected=((0, 1), (2,), (3, 4))):
        assert isinstance(error, str) and problem in error


def test_the_ranks_agree_on_the_newest_membership_that_all_know():
    groups = [{"known_membership": number, "agreed_membership": 1} for number in (3, 2, 4)]
    assert [group.agreed_membership for _, group in combined([0], [1], [2], groups=groups)] == [2, 2, 2]


def test_gradients_are_means_over_all_shards_and_statistics_over_those_with_rows():
    step = ShardSums(SingleProcess(), 4, PAIR)
    step.begin(step_of(0, 1), [np.array([1.0, 1.0]), np.array(7)])
    step.add(Gradients(1.0, [np.array([1, 2], np.float32)], [np.array([2.0, 1.0]), np.array(8)]))
    step.add(Gradients(1.0, [np.array([3, 2], np.float32)], [np.array([4.0, 1.0]), np.array(8)]))
    (gradient,), (mean, count), _ = step.combine()
    assert gradient.dtype == np.float32 and gradient.tolist() == [1, 1]
    assert mean.tolist() == [3, 1]
    assert count.dtype == np.int64 and count == 8


def test_statistics_that_no_shard_changes_keep_their_bits():
    mask = np.array([-np.inf, 0, 1e-40, 3e38, np.nan, -0.0], np.float32)
    numbers = np.array([2**60 + 1, -5])
    step = ShardSums(SingleProcess(), 3, ())
    step.begin(step_of(0, 1, 2), [mask, numbers])
    for _ in range(3):
        step.add(Gradients(1.0, [], [mask.copy(), numbers + [0, 1]]))
    _, (after, counted), _ = step.combine()
    assert after.tobytes() == mask.tobytes()
    assert counted.tolist() == [2**60 + 1, -4]


def test_statistics_become_finite_where_they_do_in_all_shards():
    """As a minimum of values before its first one: those of layers for quantization begin so."""
    step = ShardSums(SingleProcess(), 2, ())
    step.begin(step_of(0, 1), [np.array([np.inf, np.inf, np.inf, -np.inf, 1], np.float32)])
    for values in ([2, 0, 3, -np.inf, 1.5], [4, 0, np.inf, -np.inf, 2]):
        step.add(Gradients(1.0, [], [np.array(values, np.float32)]))
    _, (after,), _ = step.combine()
    assert after.dtype == np.float32 and after.tolist() == [3, 0, np.inf, -np.inf, 1.75]


BY_RANK = Assignment.contiguous(3, 8).by_rank
SHARDS_OF_RANK = [[0, 1], [2], [3]]


def test_each_shard_is_chosen_equally_often_and_each_other_rank_checks_it():
    steps = 8000
    chosen = Counter((audit.shard, audit.by) for audit in (choose(0, step, BY_RANK, range(8)) for step in range(steps)))
    for shard, owner in ((shard, rank) for rank, of_rank in enumerate(BY_RANK) for shard in of_rank):
        by = {rank: chosen[shard, rank] for rank in range(3)}
        assert by.pop(owner) == 0
        for count in by.values():
            assert abs(count - steps / 16) < 5 * (steps / 16) ** 0.5


def test_what_is_chosen_depends_on_the_seed_and_only_on_shards_with_rows():
    first, other = ([choose(seed, step, BY_RANK, (1, 7)) for step in range(40)] for seed in (0, 1))
    assert first != other and first == [choose(0, step, BY_RANK, (1, 7)) for step in range(40)]
    assert {audit.shard for audit in first} == {1, 7}


def test_one_rank_or_no_shard_is_not_audited():
    assert choose(0, 3, ((0, 1, 2),), (0, 1, 2)) is None
    assert choose(0, 3, BY_RANK, ()) is None


@given(seed=st.integers(0, 99), place=st.integers(0, 13), bit=st.integers(0, 31))
def test_one_bit_anywhere_changes_the_hash(seed, place, bit):
    values = np.random.default_rng(seed).normal(size=14).astype(np.float32)
    damaged = values.copy()
    damaged.view(np.uint32)[place] ^= np.uint32(1 << bit)
    sound = hash_shard(0.5, [values[:6].reshape(2, 3), values[6:]])
    assert hash_shard(0.5, [damaged[:6].reshape(2, 3), damaged[6:]]) != sound
    assert hash_shard(np.nextafter(0.5, 1), [values[:6].reshape(2, 3), values[6:]]) != sound


@pytest.mark.parametrize(
    ("first", "again", "verdict"),
    [
        # Others decide.
        ({0: 5, 2: 9}, [5, 5, 9], AuditVerdict(2, True)),
        ({0: 5, 2: 9}, [5, 5, 5], AuditVerdict(2, False)),
        ({0: 9, 2: 5}, [9, 5, 5, 5], AuditVerdict(0, True)),
        ({1: 9, 2: 5}, [5, 9, 5, 8], AuditVerdict(1, True)),
        # A rank that is right the second time was wrong once.
        ({0: 5, 1: 9}, [5, 5], AuditVerdict(1, False)),
        ({0: 9, 1: 5}, [7, 5], AuditVerdict(0, True)),
        # Nobody can tell.
        ({0: 5, 1: 9}, [5, 9], AuditVerdict(None)),
        ({0: 5, 1: 9}, [5, 9, 5, 9], AuditVerdict(None)),
        # More than one rank has other bits: those of two, of a counter of calls, and of three different ones.
        ({0: 5, 1: 9}, [6, 7], AuditVerdict(None, varies=True)),
        ({0: 5, 1: 9}, [9, 10, 9, 9], AuditVerdict(None, varies=True)),
        ({0: 5, 2: 9}, [5, 7, 8], AuditVerdict(None, varies=True)),
    ],
)
def test_who_was_wrong(first, again, verdict):
    assert judge(first, again) == verdict


def audited(audit, loss=1.0, gradient=1.0, mean=2.0, only=False):
    """What each rank gets from a step if the rank that checks shard 1 has these values of it.

    Without damage a shard has loss 1, a gradient of 1, and its running statistic changes from 0 to 2.
    """

    def of_rank(group):
        shards = [] if only else [Batch(*NOTHING, part=shard) for shard in SHARDS_OF_RANK[group.rank]]
        if only or group.rank == audit.by:
            shards.append(Batch(*NOTHING, part=audit.shard, is_witness=True))
        sums = ShardSums(group, 4, PAIR)
        by_rank = () if only else tuple(map(tuple, SHARDS_OF_RANK))
        step = Batch(*NOTHING, shards=tuple(shards), by_rank=by_rank, audit=audit)
        sums.begin(step, [np.zeros(1, np.float32)])
        for shard in shards:
            is_checked = shard.is_witness and group.rank == audit.by
            values = (loss, gradient, mean) if is_checked else (1.0, 1.0, 2.0)
            arrays = np.full(2, values[1], np.float32), np.full(1, values[2], np.float32)
            sums.add(Gradients(values[0], *([array] for array in arrays)))
        try:
            return sums.combine()
        except (ShardsDiffer, ShardHashes) as found:
            return found

    return on_all_ranks(3, of_rank)


def test_the_shard_that_is_checked_does_not_count_twice():
    for combined in audited(Audit(1, by=2)):
        assert [float(loss) for loss in combined.loss] == [1.0] * 4
        assert [loss.rank for loss in combined.loss] == [0, 0, 1, 2]
        assert combined.arrays[0].tolist() == [1, 1] and combined.statistics[0].tolist() == [2]


@pytest.mark.parametrize("damage", [{"loss": 1 + 2**-52}, {"gradient": 1 + 2**-23}, {"mean": 2 + 2**-22}])
def test_one_bit_of_loss_gradient_or_statistic_is_found_by_all_ranks(damage):
    for found in audited(Audit(1, by=2), **damage):
        assert isinstance(found, ShardsDiffer)
        assert (found.step, found.shard, found.owner, found.by, list(found.hashes)) == (7, 1, 0, 2, [0, 2])
        assert "ranks 0 and 2 computed different bits for shard 1 of step 7" in str(found)


def test_a_step_that_only_computes_it_again_gives_the_hashes_of_all_ranks():
    sound, second, damaged = audited(Audit(1, by=2, only=True), gradient=3.0, only=True)
    assert isinstance(sound, ShardHashes) and sound.by_rank == second.by_rank == damaged.by_rank
    first, other, of_witness = sound.by_rank
    assert first == other != of_witness
