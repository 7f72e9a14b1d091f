"""Phases: what a rank does, how long it takes, and the parts of recorded steps, which have no gaps."""

import contextlib
import itertools
import time

import pytest

from hvdtrain.system.phases import BACKWARD, DATA, FORWARD, JOINING, LOOP, UPDATE, Phases, collective, now, phases


def lengths(step):
    return {part.name: (part.end - part.begin) / 1e9 for part in step.parts}


def test_parts_have_no_gaps_and_are_the_step():
    recorder = Phases()
    recorder.record()
    for step in range(3):
        for phase in (DATA, FORWARD, BACKWARD, UPDATE, LOOP):
            recorder.begin(phase)
            time.sleep(0.001)
        recorder.end_step(step)
    first, *others = recorder.stop_recording()
    assert [step.step for step in (first, *others)] == [0, 1, 2]
    for before, after in itertools.pairwise((first, *others)):
        assert before.end == after.begin
    for step in (first, *others):
        assert all(a.end == b.begin for a, b in itertools.pairwise(step.parts))
        assert lengths(step).keys() >= {DATA.name, FORWARD.name, BACKWARD.name, UPDATE.name}
        assert all(length >= 0.0005 for name, length in lengths(step).items() if name != LOOP.name)


def test_part_includes_what_it_queued():
    recorder, waited = Phases(), []
    recorder.wait = lambda: waited.append(now())
    recorder.record()
    recorder.begin(FORWARD)
    waited.clear()
    recorder.begin(BACKWARD)
    (done,) = waited
    recorder.end_step(7)
    parts = {part.name: part for part in recorder.stop_recording()[0].parts}
    forward, backward = parts[FORWARD.name], parts[BACKWARD.name]
    assert forward.begin <= done <= forward.end <= backward.begin


def test_the_time_of_each_phase_is_counted():
    timer, told, began = Phases(), [], now()
    timer.start_run(LOOP, told.append)
    for phase in (DATA, FORWARD, JOINING, DATA):
        timer.begin(phase)
        time.sleep(0.01)
    assert timer.seconds(DATA) >= 0.02 and timer.seconds(FORWARD) >= 0.01
    assert timer.seconds(DATA, FORWARD, JOINING, LOOP) <= (now() - began) / 1e9
    assert told == [True, False, True], "the time of steps begins, ends, and begins again"
    timer.begin(LOOP)  # from here on the others stay
    assert timer.seconds(DATA, FORWARD) == pytest.approx(timer.seconds(DATA) + timer.seconds(FORWARD))


def test_a_rank_in_a_collective_waits_in_any_phase(monkeypatch):
    monkeypatch.setattr(phases, "_in_collective", False)  # a thread of another test may have ended in one
    waits = []

    class Group:
        @collective
        def sum(self):
            waits.append(phases.waits)

        @collective
        def broadcast(self):
            self.sum()
            waits.append(phases.waits)
            raise OSError

    phases.start_run(LOOP, lambda begins: None)
    phases.begin(DATA)
    Group().sum()
    assert waits == [True] and not phases.waits
    with contextlib.suppress(OSError):
        Group().broadcast()
    assert waits == [True] * 3 and not phases.waits
    phases.begin(JOINING)
    assert phases.waits
