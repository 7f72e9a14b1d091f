"""A timeline in words, its file, and the offsets of clocks that differ by known amounts."""

import json
import random
import threading

import pytest
from support.rank_threads import on_all_ranks
from support.timeline_steps import LENGTHS, step
from support.traces import Trace

from hvdtrain.runs import timeline
from hvdtrain.runs.timeline import (
    ClockLine,
    ClockReading,
    Offset,
    RankSteps,
    RoundTimes,
    offset,
    read_clocks,
    summary,
    trace,
)
from hvdtrain.system.phases import BACKWARD, FIT, GRADIENTS


def job(*by_rank, steps=10):
    """Steps of 10 ms of ranks on hosts, whose parts have these lengths (ms), by rank."""
    return [
        RankSteps(rank, f"host{rank}", [step(100 + i, 10 * i, **lengths) for i in range(steps)])
        for rank, lengths in enumerate(by_rank)
    ]


SLOW, FAST = {"backward": 6, "gradients": 0}, {"backward": 1, "gradients": 5}


def test_parts_and_the_rank_that_others_wait_for():
    first, last = summary(job(FAST, SLOW, FAST))
    assert first.startswith("steps 100 to 109 took 10 ms each: gradients 33%, backward 27%, forward 20%")
    assert last == (
        "rank 1 on host1 was the last to begin gradients in 10 of 10 steps: the others waited 5 ms for it in each, "
        "50% of the time; backward took it 6 ms, other ranks 1 ms"
    )
    # After rank 1 was lost, ranks 0 and 2 recorded the steps: they have the numbers that the launcher gave them.
    first, second = job(FAST, SLOW)
    assert "rank 2 on host1 was the last to" in summary([first, second._replace(rank=2)])[1]


def test_no_rank_is_named_if_none_stands_out():
    even = job({}, {})
    assert summary(even)[1].startswith("no rank stands out: the last one came 0 ms after the others")
    turns = [
        RankSteps(rank, "", [step(i, 10 * i, **(SLOW if i % 2 == rank else FAST)) for i in range(10)])
        for rank in range(2)
    ]
    assert summary(turns)[1] == (
        "no rank stands out: the last one came 5 ms after the others on average (rank 0 in 5, rank 1 in 5 steps)"
    )


def test_clocks_that_are_not_exact_enough_name_no_rank():
    assert summary(job(FAST, SLOW), error_s=0.006)[1].startswith("which rank was last cannot be told")
    assert "rank 1 on host1" in summary(job(FAST, SLOW), error_s=0.004)[1]


def ranks(**of_rank_1):
    return [
        RankSteps(0, "one", [step(5, 0), step(6, 10)]),
        RankSteps(1, "two", [step(5, 0, **of_rank_1), step(6, 10, **of_rank_1)]),
    ]


def written(folder, *arguments):
    path = folder / "timeline.json"
    path.write_text(json.dumps(trace(*arguments)))
    found = Trace(path)
    found.check()
    return found


def test_each_rank_has_its_steps_and_their_parts(tmp_path):
    found = written(tmp_path, ranks(backward=3, gradients=3), {"summary": ["text"]})
    assert found.about == {"summary": ["text"]}
    assert found.processes == {0: "rank 0 (one)", 1: "rank 1 (two)"}
    assert [*found.names.values()] == 2 * ["main thread"]
    assert list(found.steps(1)) == ["step 5", "step 6"]
    assert [part.name for part in found.steps(1)["step 6"]] == list(LENGTHS)
    assert [(part.name, part.begin) for part in found.steps(1)["step 6"]][2:4] == [
        (BACKWARD.name, 13000), (GRADIENTS.name, 16000),
    ]  # fmt: skip


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
    delays = [(own.randint(1, 200_000), own.randint(100_000, 500_000)) for _ in range(timeline.ROUNDS)]
    skews = [(own.randint(0, 1_000_000), own.randint(0, 1_000_000)) for _ in range(timeline.ROUNDS)]
    first, second = rounds(lambda rank, time: time + rank * difference, delays, skews)
    found = offset(first, second)
    assert abs(found.ns - difference) <= found.error_ns
    assert found.error_ns < 1_000_000


def test_drift_between_two_readings_is_corrected():
    before = ClockReading(1000, [Offset(0, 0), Offset(500, 10)])
    after = ClockReading(2000, [Offset(0, 0), Offset(700, 20)])
    line = ClockLine(1, before, after)
    assert line.to_rank_0(1500) == 1000
    assert line.to_rank_0(2700) == 2000
    assert line.to_rank_0(2100) == pytest.approx(1500, abs=1)
    assert line.error_ns == 20


def test_ranks_find_the_difference_of_their_clocks(monkeypatch):
    """As on two hosts: rank 1's clock is 5 s ahead."""
    differences = threading.local()
    real = timeline.now
    monkeypatch.setattr(timeline, "now", lambda: real() + differences.ns)
    monkeypatch.setattr(timeline, "_clock", lambda: str(differences.ns))

    def read(group):
        differences.ns = group.rank * 5_000_000_000
        return read_clocks(group)

    first, second = on_all_ranks(2, read)
    assert first.offsets == second.offsets
    measured = first.offsets[1]
    assert 0 < measured.error_ns < 100_000_000
    assert abs(measured.ns - 5_000_000_000) <= measured.error_ns


def renamed(ranks, old, new):
    return [
        rank._replace(
            steps=[
                one._replace(parts=[part._replace(name=new if part.name == old else part.name) for part in one.parts])
                for one in rank.steps
            ]
        )
        for rank in ranks
    ]


def test_strategies_that_combine_gradients_elsewhere():
    late = renamed(job({"forward": 6, "gradients": 0}, {"forward": 2, "gradients": 4}), "gradients", BACKWARD.name)
    assert "rank 0 on host0 was the last to begin backward in 10 of 10 steps" in summary(late)[1]
    fit = renamed(job({"data": 5, "forward": 1, "backward": 1, "gradients": 2}, {}), "forward", FIT.name)
    fit = [rank._replace(steps=[one._replace(parts=[p for p in one.parts if p.name in ("data", FIT.name)]) for one in
                                rank.steps]) for rank in fit]  # fmt: skip
    assert "rank 0 on host0 was the last to begin fit in 10 of 10 steps" in summary(fit)[1]


def test_same_clock_has_no_offset():
    assert offset(RoundTimes("a", [1], [2]), RoundTimes("a", [5], [9])) == Offset(0, 0)
