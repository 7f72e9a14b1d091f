"""Offsets of clocks, of ranks whose clocks differ by known amounts."""

import random
import threading

import pytest
from support.rank_threads import on_all_ranks

from hvdtrain.runs.timeline import clocks
from hvdtrain.runs.timeline.clocks import ClockLine, ClockReading, Offset, RoundTimes, offset, read_clocks


def rounds(clock_of, delays, skews):
    """What two ranks measure in allreduces that each rank enters and leaves at random times."""
    true = [RoundTimes("a", [], []), RoundTimes("b", [], [])]
    at = 0
    for delay, skew in zip(delays, skews, strict=True):
        enters = [at + skew[0], at + skew[1]]
        leaves = [max(enters) + delay[0], max(enters) + delay[1]]
        for rank, own in enumerate(true):
            own.begins.append(clock_of(rank, enters[rank]))
            own.ends.append(clock_of(rank, leaves[rank]))
        at = max(leaves) + 1000
    return true


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("difference", [0, 3_000_000, -7_000_000_000])
def test_offset_is_within_its_error(seed, difference):
    """Whatever the delays are, also when those of one direction are always longer."""
    own = random.Random(seed)
    delays = [(own.randint(1, 200_000), own.randint(100_000, 500_000)) for _ in range(clocks.ROUNDS)]
    skews = [(own.randint(0, 1_000_000), own.randint(0, 1_000_000)) for _ in range(clocks.ROUNDS)]
    first, second = rounds(lambda rank, time: time + rank * difference, delays, skews)
    found = offset(first, second)
    assert abs(found.ns - difference) <= found.error_ns
    assert found.error_ns < 1_000_000


def test_same_clock_has_no_offset():
    assert offset(RoundTimes("a", [1], [2]), RoundTimes("a", [5], [9])) == Offset(0, 0)


def test_drift_between_two_readings_is_corrected():
    before = ClockReading(1000, [Offset(0, 0), Offset(500, 10)], [])
    after = ClockReading(2000, [Offset(0, 0), Offset(700, 20)], [])
    line = ClockLine(1, before, after)
    assert line.to_rank_0(1500) == 1000
    assert line.to_rank_0(2700) == 2000
    assert line.to_rank_0(2100) == pytest.approx(1500, abs=1)
    assert line.error_ns == 20


def test_ranks_find_the_difference_of_their_clocks(monkeypatch):
    """As on two hosts: rank 1's clock is 5 s ahead."""
    differences = threading.local()
    real = clocks.now
    monkeypatch.setattr(clocks, "now", lambda: real() + differences.ns)
    monkeypatch.setattr(clocks, "_clock", lambda: str(differences.ns))

    def read(group):
        differences.ns = group.rank * 5_000_000_000
        return read_clocks(group)

    first, second = on_all_ranks(2, read)
    assert first.offsets == second.offsets
    measured = first.offsets[1]
    assert 0 < measured.error_ns < 100_000_000
    assert abs(measured.ns - 5_000_000_000) <= measured.error_ns
    assert len(first.local_sums) == clocks.ROUNDS
