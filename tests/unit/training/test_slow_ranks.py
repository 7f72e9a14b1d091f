"""A slow rank is named once while it is slow; jitter, and what cannot be told, name nobody."""

import numpy as np
import pytest

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.interfaces import Position
from hvdtrain.runs.step_times import StepTime
from hvdtrain.training.slow_ranks import SlowRanks


def times(compute, communicate=None, data=None):
    """An interval of ranks with these seconds; they wait for the slowest one unless it is told."""
    slowest = max(compute)
    communicate = communicate or [slowest - seconds for seconds in compute]
    return list(map(StepTime, compute, communicate, data or [0.0] * len(compute)))


class Ranks(SingleProcess):
    """A group of so many ranks, each on a host of its own."""

    def __init__(self, ranks):
        self.size = ranks

    def gather(self, value):
        return [f"node{rank}" for rank in range(self.size)]


def logged(caplog, intervals, ranks=2):
    """What is logged over these intervals, and what the display shows after the last one."""
    caplog.clear()
    slow = SlowRanks(Ranks(ranks))
    slow.started(Position())
    slow.add(times([100.0] + [1.0] * (ranks - 1)))  # a rank that takes long to warm up
    for interval in intervals:
        slow.add(interval)
    return [record.getMessage() for record in caplog.records], slow.figures


def test_a_slow_rank_is_named_once_until_it_has_recovered(caplog):
    slow, normal = times([1.0, 2.1]), times([1.0, 1.05])
    assert logged(caplog, [slow] * 2) == ([], []), "it may be another program that starts"
    messages, figures = logged(caplog, [slow] * 20)
    assert len(messages) == 1 and messages[0].startswith("rank 1 on node1 is slow: it computes 2.1 times as long as ")
    assert figures == ["rank 1 is slow (2.1x)"]
    messages, figures = logged(caplog, [*[slow] * 9, *[normal] * 9, *[slow] * 9])
    assert messages[1] == "rank 1 on node1 is as fast as the other ranks again" and messages[2] == messages[0]
    assert len(messages) == 3 and figures


def test_short_intervals_count_together(caplog):
    """A logging step each 0.1 s, in which a rank stands still or not at all."""
    stopped, running = times([0.05, 0.15]), times([0.05, 0.05])
    messages, _ = logged(caplog, [stopped, running] * 40)
    assert len(messages) == 1 and "rank 1 on node1 is slow: it computes 2.0 times as long" in messages[0]
    assert logged(caplog, [stopped] * 10)[0] == []


def test_of_many_ranks_each_is_compared_with_the_median(caplog):
    messages, _ = logged(caplog, [times([1.0, 1.1, 1.9, 1.0, 0.9, 1.7])] * 20, ranks=6)
    assert [message.partition(" is ")[0] for message in messages] == ["rank 2 on node2", "rank 5 on node5"]


def test_a_rank_that_waits_for_its_rows_is_named(caplog):
    messages, figures = logged(caplog, [times([1.0, 1.0], [1.0, 0.0], [0.2, 1.2])] * 20)
    assert len(messages) == 1 and "rank 1 on node1 is slow: it waits for data for 45% more of the time" in messages[0]
    assert "--workers" in messages[0] and figures == ["rank 1 is slow (data 45%)"]
    assert logged(caplog, [times([1.0, 1.0], [0.0, 0.0], [9.0, 9.0])] * 20) == ([], []), "the disk is slow for all"


@pytest.mark.parametrize("seed", range(3))
def test_jitter_names_nobody(caplog, seed):
    """Each rank takes up to twice its time now and then."""
    random = np.random.default_rng(seed)
    intervals = [times((0.5 * (1 + random.random(2) ** 3)).tolist()) for _ in range(2000)]
    assert logged(caplog, intervals) == ([], [])


def test_what_contains_waiting_names_nobody(caplog):
    assert logged(caplog, [times([1.0, 2.1], [None, None])] * 20) == ([], [])
    assert logged(caplog, [[StepTime(2.0, 0.0, 0.0)]] * 20, ranks=1) == ([], [])
