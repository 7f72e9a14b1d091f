"""Shards of a run move at its logging steps, which are recorded and shown."""

from types import SimpleNamespace

import pytest

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.interfaces import Position
from hvdtrain.runs.step_times import StepTime
from hvdtrain.training.balancing import Balancing
from hvdtrain.training.ranks import Interval


class Run(SimpleNamespace):
    """What `Balancing` asks of a run."""

    def __init__(self, shards, size, balance="auto"):
        self.config, self.runtime = Config(shards=shards), RuntimeOptions(balance=balance)
        self.group, self.assignment = SimpleNamespace(size=size), Assignment.contiguous(size, shards)

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
        times = [StepTime(own, max(local) - own, 0.0) for own in local]
        balancing.joined(Position(step=first + 10 * number), Interval(0.0, times=times))
    return reporter


@pytest.mark.parametrize("first", [0, 995])
def test_shards_that_move_are_recorded_and_shown(first):
    run = Run(12, 3)
    reporter = after(run, 9, [0.1, 0.1, 0.2], first)
    of_shard = "a shard takes rank 2 200 ms and rank 0 100 ms"
    why = f"{of_shard}, and the slowest rank 500 ms for those of a step instead of 800 ms"
    assert reporter.records == [
        {"kind": "shards", "step": first + 60, "counts": [5, 5, 2], "moved": [[10, 2, 0], [11, 2, 1]], "why": why}
    ]
    assert reporter.shown == [f"2 shard(s) move from rank 2 to 0, 1: {why}; the ranks now have 5, 5, 2"]
    assert run.assignment.by_rank == ((0, 1, 2, 3, 10), (4, 5, 6, 7, 11), (8, 9))


@pytest.mark.parametrize("run", [Run(12, 3, "off"), Run(3, 3), Run(0, 3)])
def test_shards_stay_where_nothing_can_be_won_or_nobody_asks(run):
    assert after(run, 20, [0.1, 0.1, 0.2]).records == []


def test_ranks_that_changed_begin_with_equal_shares_and_are_watched_anew():
    run, reporter = Run(8, 2), Reporter()
    balancing = Balancing(run, reporter)
    slow = Interval(0.0, times=[StepTime(1.0, 3.0, 0.0), StepTime(4.0, 0.0, 0.0)])
    for first in (0, 55):  # the last steps are done again
        balancing.started(Position(step=first))
        for number in range(1, 7):
            assert run.assignment.counts == [4, 4] and len(reporter.records) == first // 55
            balancing.joined(Position(step=first + 10 * number), slow)
        assert run.assignment.counts == [7, 1]
        balancing.renewed(Position(step=first + 60), None)
        assert run.assignment.counts == [4, 4]
    balancing.started(Position(step=115))
    for number in range(1, 6):
        balancing.joined(Position(step=115 + 10 * number), slow)
    run.group.size = 3
    balancing.renewed(Position(step=165), None)
    assert run.assignment.counts == [2, 3, 3]
    balancing.started(Position(step=165))
    for number in range(1, 9):
        balancing.joined(Position(step=165 + 10 * number), Interval(0.0, times=[StepTime(1.0, 0.0, 0.0)] * 3))
    assert len(reporter.records) == 2
