"""Shards move from slow ranks to fast ones, and stay where chance alone tells ranks apart."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stack import cases

from hvdtrain.datasets.sharding import Assignment
from hvdtrain.runs.step_times import StepTime
from hvdtrain.training.balance import LENGTHS, Balancer, balanced, moved, moves_to

STEPS = 10


def interval(counts, shard_s, fixed_s=0.0):
    """The times of an interval of a second or more, in which each rank waits for the slowest one."""
    local = STEPS * (counts * np.asarray(shard_s) + fixed_s)
    local *= max(1.0 / local.max(), 1.0)
    return [StepTime(seconds, local.max() - seconds, 0.0) for seconds in local]


def train(shards, shard_s, parts, noise=0.0, seed=0, fixed_s=0.0):
    """The parts after which shards moved, and how many each rank had then. shard_s: of each rank in a part."""
    random, changes = np.random.default_rng(seed), []
    balancer = Balancer(Assignment.contiguous(len(shard_s(0)), shards))
    for part in range(parts):
        seconds = shard_s(part) * random.lognormal(0, noise, len(shard_s(part)))
        if change := balancer.add(STEPS, interval(np.array(balancer.assignment.counts), seconds, fixed_s)):
            assert change.assignment == balancer.assignment
            changes.append((part, change.assignment.counts))
    return changes


def seldom(part):
    """Rank 3 takes twice as long for some time."""
    return np.array([0.1, 0.1, 0.1, 0.2 if 20 <= part < 200 else 0.1])


COUNTS = st.lists(st.integers(1, 4), min_size=2, max_size=4)


@given(COUNTS, st.data())
def test_the_slowest_rank_takes_as_little_as_with_any_numbers_of_shards(counts, data):
    seconds = data.draw(st.lists(st.floats(0.01, 10), min_size=len(counts), max_size=len(counts)))
    after = balanced(counts, seconds)
    others = itertools.product(range(1, sum(counts) + 1), repeat=len(counts))
    least = min(max(np.multiply(other, seconds)) for other in others if sum(other) == sum(counts))
    assert sum(after) == sum(counts) and min(after) >= 1
    assert max(np.multiply(after, seconds)) == pytest.approx(least)


def test_as_few_shards_move_as_possible():
    assert balanced([3, 2, 3], [1, 1, 1]) == [3, 2, 3]
    assert balanced([4, 4, 4, 4], [1, 1, 1, 2]) == [5, 5, 4, 2]
    assert balanced([1, 3], [9, 1]) == [1, 3], "each rank keeps one, by which its speed stays known"


@given(COUNTS, st.data())
def test_moves_lead_to_these_numbers(counts, data):
    shards = iter(data.draw(st.permutations(range(sum(counts)))))
    before = Assignment(tuple(tuple(sorted(itertools.islice(shards, count))) for count in counts))
    after = data.draw(st.permutations(counts))
    moves = moves_to(before, after)
    assert moved(before, moves).counts == after
    assert len(moves) == sum(max(old - new, 0) for old, new in zip(counts, after, strict=True))
    assert all(shard in before.by_rank[giver] for shard, giver, _ in moves)


@pytest.mark.parametrize("noise", cases([0.02, 0.1, 0.2], short={0.2}))
@pytest.mark.parametrize(("shards", "expected"), [(8, {1}), (16, {2}), (64, {8, 9, 10})])
def test_a_rank_of_half_the_speed_gets_half_of_a_share_until_it_recovers(shards, expected, noise):
    changes = train(shards, seldom, 420, noise)
    slow = [counts for part, counts in changes if part < 200]
    assert {counts[3] for counts in slow} <= expected and 1 <= len(slow) <= 2
    assert changes[0][0] < 20 + LENGTHS[2], "soon"
    assert abs(changes[-1][1][3] - shards / 4) <= 1 and len(changes) <= 4


@pytest.mark.parametrize("noise", cases([0.05, 0.15, 0.3], short={0.3}))
@pytest.mark.parametrize(("shards", "ranks"), [(8, 2), (13, 4), (16, 4), (64, 8), (256, 16)])
def test_shards_of_equal_ranks_stay(shards, ranks, noise):
    for seed in range(4):
        assert train(shards, lambda _: np.full(ranks, 0.1), 400, noise, seed) == []


def test_a_single_part_moves_nothing():
    """Another program takes a core for a second, now and then."""
    assert train(16, lambda part: np.array([0.1, 0.1 if part % 17 else 0.5]), 400, 0.02) == []


def test_shards_that_move_to_and_fro_do_so_less_and_less():
    """A rank is fast while it has few shards, and slow with more."""
    balancer, at = Balancer(Assignment.contiguous(2, 8)), []
    for part in range(600):
        counts = np.array(balancer.assignment.counts)
        if balancer.add(STEPS, interval(counts, [0.1, 0.3 if counts[1] > 3 else 0.05])):
            at.append(part)
    pauses = np.diff(at)
    assert len(at) >= 4 and list(pauses) == sorted(pauses) and pauses[-1] > LENGTHS[-1]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(1, 8), min_size=2, max_size=5), st.integers(0, 99), st.sampled_from([0.0, 0.1]))
def test_any_speeds_converge(speeds, seed, noise):
    shards = 8 * len(speeds)
    changes = train(shards, lambda _: np.array(speeds), 300, noise, seed, fixed_s=0.5)
    assert len(changes) <= 4
    last = changes[-1][1] if changes else Assignment.contiguous(len(speeds), shards).counts
    best = max(np.multiply(balanced(last, speeds), speeds))
    assert max(np.multiply(last, speeds)) <= 1.25 * best


EQUAL, SLOW = interval(np.array([4, 4]), [0.1, 0.1]), interval(np.array([4, 4]), [1.0, 99.0])


@pytest.mark.parametrize(
    "intervals",
    [
        pytest.param([SLOW] + [EQUAL] * 9, id="frameworks compile in the first steps with other shards"),
        pytest.param([[StepTime(1.0, None, 0), StepTime(9.0, None, 0)]] * 90, id="times contain waiting"),
    ],
)
def test_what_moves_nothing(intervals):
    balancer = Balancer(Assignment.contiguous(2, 8))
    assert [balancer.add(STEPS, times) for times in intervals] == [None] * len(intervals)


def test_short_intervals_count_together():
    """Logging steps each 0.1 s: a second each is a part."""
    balancer = Balancer(Assignment.contiguous(2, 8))
    changes = [balancer.add(1, [StepTime(0.1, 0.0, 0.0), StepTime(0.04, 0.06, 0.0)]) for _ in range(52)]
    assert not any(changes[:50]) and changes[50].assignment.counts == [2, 6]
    assert changes[50].moves == [(2, 0, 1), (3, 0, 1)]
    assert (changes[50].before_s, changes[50].after_s) == pytest.approx((0.1, 0.06))
