"""Shards move from slow ranks to fast ones, and stay where chance alone tells ranks apart."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stack import cases

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs.step_times import StepSeconds
from hvdtrain.training.balance import LENGTHS, Balancer, Balancing, balanced, moved
from hvdtrain.training.ranks import LoggedInterval

STEPS = 10


def interval(counts, shard_s, fixed_s=0.0):
    """The times of an interval of a second or more, in which each rank waits for the slowest one."""
    local = STEPS * (counts * np.asarray(shard_s) + fixed_s)
    local *= max(1.0 / local.max(), 1.0)
    return [StepSeconds(seconds, local.max() - seconds, 0.0) for seconds in local]


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
    assignment, moves = moved(before, after)
    assert assignment.counts == after
    assert [shard for shards in assignment.by_rank for shard in shards] == list(range(sum(counts)))
    by_move = {shard: (giver, taker) for shard, giver, taker in moves}
    for shard in range(sum(counts)):
        owners = tuple(next(rank for rank, of in enumerate(one.by_rank) if shard in of) for one in (before, assignment))
        assert by_move.get(shard, owners) == owners and (shard in by_move) == (owners[0] != owners[1])


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


@pytest.mark.parametrize(
    "intervals",
    [
        pytest.param([[1.0, 99.0]] + [[0.1, 0.1]] * 9, id="frameworks compile in the first steps with other shards"),
        pytest.param([[StepSeconds(1.0, None, 0), StepSeconds(9.0, None, 0)]] * 90, id="times contain waiting"),
    ],
)
def test_what_moves_nothing(intervals):
    balancer = Balancer(Assignment.contiguous(2, 8))
    for times in intervals:
        times = times if isinstance(times[0], StepSeconds) else interval(np.array([4, 4]), times)
        assert balancer.add(STEPS, times) is None


def test_short_intervals_count_together():
    """Logging steps each 0.1 s: a second each is a part."""
    balancer = Balancer(Assignment.contiguous(2, 8))
    changes = [balancer.add(1, [StepSeconds(0.1, 0.0, 0.0), StepSeconds(0.04, 0.06, 0.0)]) for _ in range(52)]
    assert not any(changes[:50]) and changes[50].assignment.counts == [2, 6]
    assert changes[50].moves == [(2, 0, 1), (3, 0, 1)]


class Run(SimpleNamespace):
    """What `Balancing` asks of a run."""

    def __init__(self, shards, size, balance="auto"):
        self.config, self.runtime = Config(shards=shards), RuntimeOptions(balance=balance)
        self.group = SimpleNamespace(size=size, ranks=range(size))
        self.assignment, self.parts = Assignment.contiguous(size, shards), shards or size

    def assign(self, assignment):
        self.assignment = assignment or Assignment.contiguous(self.group.size, self.config.shards)


class Reporter:
    def __init__(self):
        self.shown, self.records = [], []

    def show(self, text):
        self.shown.append(text)

    def record(self, kind, at, **values):
        self.records.append({"kind": kind, "step": at.step, **values})


def after(run, logging_steps, seconds, first=0):
    """What is shown and recorded after so many logging steps, from one step on. seconds: of a shard, by rank."""
    reporter = Reporter()
    balancing = Balancing(run, reporter)
    balancing.started(Position(step=first))
    for number in range(1, logging_steps + 1):
        local = [10 * count * shard_s for count, shard_s in zip(run.assignment.counts, seconds, strict=True)]
        times = [StepSeconds(own, max(local) - own, 0.0) for own in local]
        balancing.joined(Position(step=first + 10 * number), LoggedInterval(0.0, times=times))
    return reporter


@pytest.mark.parametrize("first", [0, 995])
def test_shards_that_move_are_recorded_and_shown(first):
    run = Run(12, 3)
    reporter = after(run, 9, [0.1, 0.1, 0.2], first)
    of_shard = "a shard takes rank 2 200 ms and rank 0 100 ms"
    why = f"{of_shard}, and the slowest rank 500 ms for those of a step instead of 800 ms"
    moves = [(4, 1, 0), (8, 2, 1), (9, 2, 1)]
    assert reporter.records == [{"kind": "shards", "step": first + 60, "counts": [5, 5, 2], "moved": moves, "why": why}]
    assert reporter.shown == [f"3 shard(s) move from rank 1-2 to 0-1: {why}; the ranks now have 5, 5, 2"]
    assert run.assignment.by_rank == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (10, 11))


@pytest.mark.parametrize("run", [Run(12, 3, "off"), Run(3, 3), Run(0, 3)])
def test_shards_stay_where_nothing_can_be_won_or_nobody_asks(run):
    assert after(run, 20, [0.1, 0.1, 0.2]).records == []


def test_ranks_that_changed_begin_with_equal_shares_and_are_watched_anew():
    run, reporter = Run(8, 2), Reporter()
    balancing = Balancing(run, reporter)
    slow = LoggedInterval(0.0, times=[StepSeconds(1.0, 3.0, 0.0), StepSeconds(4.0, 0.0, 0.0)])
    for first in (0, 55):  # the last steps are done again
        balancing.started(Position(step=first))
        for number in range(1, 7):
            assert run.assignment.counts == [4, 4] and len(reporter.records) == first // 55
            balancing.joined(Position(step=first + 10 * number), slow)
        assert run.assignment.counts == [7, 1]
        balancing.renewed(Position(step=first + 60), None)
        assert run.assignment.counts == [4, 4]
    run.group.size = 3
    balancing.renewed(Position(step=165), None)
    assert run.assignment.counts == [2, 3, 3]
    balancing.started(Position(step=165))
    balancing.joined(Position(step=175), LoggedInterval(0.0, times=[StepSeconds(1.0, 0.0, 0.0)] * 3))
    assert len(reporter.records) == 2
