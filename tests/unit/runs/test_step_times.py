"""One rule by which a rank is slow, for logs, evaluations, `watch`, the web page and the report."""

import json

import pytest

from hvdtrain.runs.step_times import StepTime, from_record, slow_ranks, to_record


def ranks(*compute, data=(), known=True):
    """The times of ranks that compute for these seconds; they wait for the slowest one."""
    slowest = max(compute)
    return [
        StepTime(seconds, slowest - seconds if known else None, rows)
        for seconds, rows in zip(compute, data or [0.0] * len(compute), strict=True)
    ]


WAS_SLOW = {"was_slow": frozenset({(1, "compute")})}
SLOW = {
    "1.6 times the median": ([ranks(1.0, 1.1, 1.8, 0.9)], {}, [(2, "compute")]),
    "less": ([ranks(1.0, 1.1, 1.5, 0.9)], {}, []),
    "of two ranks, the other one counts": ([ranks(5.0, 8.1)], {}, [(1, "compute")]),
    "the slowest is the last": ([ranks(1.0, 3.0, 1.0, 2.0, 1.0)], {}, [(3, "compute"), (1, "compute")]),
    "the disk is slow for all": ([ranks(1.0, 1.0, data=[9.0, 9.0])], {}, []),
    "a short difference": ([ranks(0.01, 0.01, 0.05)], {}, []),
    "in one part of the window only": ([ranks(1.0, 9.0), ranks(1.0, 1.1)], {}, []),
    "in each part": ([ranks(1.0, 2.0), ranks(1.0, 1.4)], {}, [(1, "compute")]),
    "not slow yet": ([ranks(1.0, 1.4)], {}, []),
    "slow until it has recovered": ([ranks(1.0, 1.4)], WAS_SLOW, [(1, "compute")]),
    "recovered": ([ranks(1.0, 1.2)], WAS_SLOW, []),
    "computing contains the wait for others": ([ranks(1.0, 9.0, known=False)], {}, []),
    "one rank": ([ranks(1.0)], {}, []),
    "no rank": ([[]], {}, []),
    "no window": ([], {}, []),
    "as many shards": ([ranks(1.0, 1.0, 2.0)] * 3, {"work": [1, 1, 1]}, [(2, "compute")]),
    "more shards": ([ranks(2.0, 1.0, 1.0)] * 3, {"work": [2, 1, 1]}, []),
    # Rank 0 takes twice as long for a shard, and has half as many: all take the same time, and nobody waits for it.
    "fewer shards": ([ranks(1.0, 1.0, 1.05, 0.95)] * 3, {"work": [2, 4, 4, 4]}, []),
    "fewer shards, and the last": ([ranks(1.0, 0.5, 0.5, 0.5)] * 3, {"work": [3, 4, 4, 4]}, [(0, "compute")]),
}  # fmt: skip


@pytest.mark.parametrize(("window", "options", "expected"), SLOW.values(), ids=SLOW)
def test_which_ranks_are_slow(window, options, expected):
    assert [(slow.rank, slow.part) for slow in slow_ranks(window, **options)] == expected


def test_by_how_much_a_rank_is_slow():
    """One that waits for rows, by what the median rank computes."""
    (slow,) = slow_ranks([ranks(1.0, 2.0)])
    assert (slow.ratio, slow.more_s) == pytest.approx((2.0, 1.0))
    (slow,) = slow_ranks([[StepTime(1.0, 1.0, 0.0), StepTime(1.0, 0.1, 0.9)]])
    assert (slow.rank, slow.part, slow.ratio) == (1, "data", pytest.approx(1.9))


def test_parts_are_sums_differences_and_shares():
    time, more = StepTime(1.0, 2.0, 1.0), StepTime(0.5, 3.0, 0.0)
    assert time.plus(more) == (1.5, 5.0, 1.0) and time.minus(more) == (0.5, 0.0, 1.0)
    assert time.plus(StepTime(1.0, None, 0.0)).communicate is None
    assert time.shares == (0.25, 0.5, 0.25) and StepTime(0.0, 0.0, 0.0).shares is None
    assert (time.total, time.local) == (4.0, 2.0)


def test_records_without_the_times_of_all_ranks_have_none():
    good = {"compute_s": [1.0, 2.0], "communicate_s": None, "data_s": [0.0, 0.5]}
    assert from_record(good) == {0: StepTime(1.0, None, 0.0), 1: StepTime(2.0, None, 0.5)}
    for name, odd in [("compute_s", [1.0]), ("data_s", 12), ("data_s", [1.0, -1.0]), ("compute_s", [1.0, "1"])]:
        assert from_record({**good, name: odd}) == {}


@pytest.mark.parametrize("gone", [None, StepTime(0.0, 0.0, 0.0)])
def test_ranks_that_are_not_there_have_no_times(gone):
    """As null or as no time at all; where all ranks have none, they are there."""
    times = [StepTime(1.0, 2.0, 0.5), gone, StepTime(2.0, 1.0, 0.5)]
    record = json.loads(json.dumps(to_record(times)))
    assert from_record(record) == {0: times[0], 2: times[2]}
    assert from_record(to_record([StepTime(0.0, 0.0, 0.0)] * 2)) == dict.fromkeys(range(2), StepTime(0.0, 0.0, 0.0))
    assert to_record([StepTime(1.0, None, 0.0), None])["communicate_s"] is None
