"""Audits of shards: what is chosen, what is compared, and who was wrong."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer, Verdict, choose, halves, hash_shard, joined, judge
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.interfaces import Audit, Batch

BY_RANK = Assignment.contiguous(3, 8).by_rank
NOTHING = np.zeros(0), np.zeros(0, np.float32), 0.1, 7, np.zeros(0, np.int64)
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


@given(value=st.integers(0, 2**64 - 1))
def test_a_hash_has_two_halves_that_float64_holds(value):
    assert joined(*halves(value)) == value


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
        ({0: 5, 2: 9}, [5, 5, 9], Verdict(2, True)),
        ({0: 5, 2: 9}, [5, 5, 5], Verdict(2, False)),
        ({0: 9, 2: 5}, [9, 5, 5, 5], Verdict(0, True)),
        ({2: 9, 0: 5}, [5, 5, 7], Verdict(2, True)),
        ({1: 9, 2: 5}, [5, 9, 5, 8], Verdict(1, True)),
        # A rank that is right the second time was wrong once.
        ({0: 5, 1: 9}, [5, 5], Verdict(1, False)),
        ({0: 9, 1: 5}, [7, 5], Verdict(0, True)),
        ({0: 5, 1: 9}, [5, 5, 6, 7], Verdict(1, False)),
        ({0: 5, 1: 9}, [5, 5, 5, 9], Verdict(1, False)),
        # Nobody can tell.
        ({0: 5, 1: 9}, [5, 9], Verdict(None)),
        ({0: 5, 1: 9}, [6, 7], Verdict(None)),
        ({0: 5, 1: 9}, [5, 9, 5, 9], Verdict(None)),
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
        sums = ShardSums(group, 4, [(2,)])
        step = Batch(*NOTHING, shards=tuple(shards), all_shards=() if only else (0, 1, 2, 3), audit=audit)
        sums.begin(step, [np.zeros(1, np.float32)])
        for shard in shards:
            is_checked = shard.is_witness and group.rank == audit.by
            values = (loss, gradient, mean) if is_checked else (1.0, 1.0, 2.0)
            sums.add(values[0], [np.full(2, values[1], np.float32)], [np.full(1, values[2], np.float32)])
        try:
            return sums.combine()
        except (ShardsDiffer, ShardHashes) as found:
            return found

    return on_all_ranks(3, of_rank)


def test_the_shard_that_is_checked_does_not_count_twice():
    for combined in audited(Audit(1, by=2)):
        assert [float(loss) for loss in combined.losses] == [1.0] * 4
        assert [loss.rank for loss in combined.losses] == [0, 0, 1, 2]
        assert combined.gradients[0].tolist() == [1, 1] and combined.statistics[0].tolist() == [2]


@pytest.mark.parametrize("damage", [{"loss": 1 + 2**-52}, {"gradient": 1 + 2**-23}, {"mean": 2 + 2**-22}])
def test_one_bit_of_loss_gradient_or_statistic_is_found_by_all_ranks(damage):
    for found in audited(Audit(1, by=2), **damage):
        assert isinstance(found, ShardsDiffer)
        assert (found.step, found.shard, found.owner, found.by, list(found.hashes)) == (7, 1, 0, 2, [0, 2])
        assert "ranks 0 and 2 computed other bits for shard 1 of step 7" in str(found)


def test_a_step_that_only_computes_it_again_gives_the_hashes_of_all_ranks():
    sound, second, damaged = audited(Audit(1, by=2, only=True), gradient=3.0, only=True)
    assert isinstance(sound, ShardHashes) and sound.by_rank == second.by_rank == damaged.by_rank
    first, other, of_witness = sound.by_rank
    assert first == other != of_witness
