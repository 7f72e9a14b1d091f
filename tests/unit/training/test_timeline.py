"""A timeline in words, its file, and the offsets of clocks that differ by known amounts."""

import json
import random
import threading

import pytest
from support.rank_threads import on_all_ranks
from support.traces import Trace

from hvdtrain.system.phases import BACKWARD, DATA, FIT, FORWARD, GRADIENTS, UPDATE, Span, StepSpans
from hvdtrain.training import tracing
from hvdtrain.training.tracing import (
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

MS = 1_000_000
LENGTHS = {DATA.name: 1, FORWARD.name: 2, BACKWARD.name: 4, GRADIENTS.name: 2, UPDATE.name: 1}


def step(number, begin, **lengths):
    """A step that begins at `begin` (ms). lengths: of its parts (ms); None leaves one out."""
    parts, at = [], begin * MS
    for name, length in {**LENGTHS, **lengths}.items():
        if length is not None:
            parts.append(Span(name, at, at + length * MS))
            at += length * MS
    return StepSpans(number, parts)


def job(*by_rank, steps=10):
    """Steps of 10 ms of ranks on hosts, whose parts have these lengths (ms), by rank."""
    return [
        RankSteps(rank, f"host{rank}", [step(100 + i, 10 * i, **lengths) for i in range(steps)])
        for rank, lengths in enumerate(by_rank)
    ]


SLOW, FAST = {"backward": 6, "gradients": 0}, {"backward": 1, "gradients": 5}
TURNS = [
    RankSteps(rank, "", [step(i, 10 * i, **(SLOW if i % 2 == rank else FAST)) for i in range(10)]) for rank in range(2)
]
ELSEWHERE = [{"forward": 6, "backward": 2, "gradients": None}, {"forward": 2, "backward": 6, "gradients": None}]
FITS = [dict.fromkeys(LENGTHS) | {"data": 5, FIT.name: 5}, dict.fromkeys(LENGTHS) | {"data": 1, FIT.name: 9}]
WAITED = (
    "rank 1 on host1 was the last to begin gradients in 10 of 10 steps: the others waited 5 ms for it in each, "
    "50% of the time; backward took it 6 ms, other ranks 1 ms"
)
SUMMARIES = {
    "one rank": (job(FAST, SLOW, FAST), 0, WAITED),
    # After rank 1 was lost, ranks 0 and 2 recorded the steps: they have the numbers that the launcher gave them.
    "after a loss": ([job(FAST)[0], job(FAST, SLOW)[1]._replace(rank=2)], 0, "rank 2 on host1 was the last to"),
    "in turns": (TURNS, 0, "rank 0 was the last to begin gradients in 5 of 10 steps: the others waited 2.5 ms for it"),
    "clocks that are not exact enough": (job(FAST, SLOW), 0.006, "which rank was last cannot be told"),
    "clocks that are": (job(FAST, SLOW), 0.004, "rank 1 on host1"),
    "gradients combined elsewhere": (job(*ELSEWHERE), 0, "rank 0 on host0 was the last to begin backward in 10 of 10"),
    "fit": (job(*FITS), 0, "rank 0 on host0 was the last to begin fit in 10 of 10 steps"),
}


@pytest.mark.parametrize(("ranks", "error_s", "text"), SUMMARIES.values(), ids=SUMMARIES)
def test_the_rank_that_others_wait_for(ranks, error_s, text):
    first, last = summary(ranks, error_s=error_s)
    assert first.startswith("steps ") and last.startswith(text)
    if text == WAITED:
        assert first.startswith("steps 100 to 109 took 10 ms each: gradients 33%, backward 27%, forward 20%")


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
    delays = [(own.randint(1, 200_000), own.randint(100_000, 500_000)) for _ in range(tracing.ROUNDS)]
    skews = [(own.randint(0, 1_000_000), own.randint(0, 1_000_000)) for _ in range(tracing.ROUNDS)]
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
    real = tracing.now
    monkeypatch.setattr(tracing, "now", lambda: real() + differences.ns)
    monkeypatch.setattr(tracing, "_clock", lambda: str(differences.ns))

    def read(group):
        differences.ns = group.rank * 5_000_000_000
        return read_clocks(group)

    first, second = on_all_ranks(2, read)
    assert first.offsets == second.offsets
    measured = first.offsets[1]
    assert 0 < measured.error_ns < 100_000_000
    assert abs(measured.ns - 5_000_000_000) <= measured.error_ns


def test_same_clock_has_no_offset():
    assert offset(RoundTimes("a", [1], [2]), RoundTimes("a", [5], [9])) == Offset(0, 0)
