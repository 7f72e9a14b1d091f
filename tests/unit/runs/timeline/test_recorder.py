"""The recorder: parts without gaps, whose time includes what was queued in them."""

import itertools
import time

from hvdtrain.system.phases import BACKWARD, DATA, FORWARD, LOOP, UPDATE, Recorder, now


def lengths(step):
    return {part.name: (part.end - part.begin) / 1e9 for part in step.parts}


def test_parts_have_no_gaps_and_are_the_step():
    recorder = Recorder()
    recorder.start()
    for step in range(3):
        for name in (DATA, FORWARD, BACKWARD, UPDATE, LOOP):
            recorder.part(name)
            time.sleep(0.001)
        recorder.end_step(step)
    first, *others = recorder.stop()
    assert [step.step for step in (first, *others)] == [0, 1, 2]
    for before, after in itertools.pairwise((first, *others)):
        assert before.end == after.begin
    for step in (first, *others):
        assert all(a.end == b.begin for a, b in itertools.pairwise(step.parts))
        assert lengths(step).keys() >= {DATA, FORWARD, BACKWARD, UPDATE}
        assert all(length >= 0.0005 for name, length in lengths(step).items() if name != LOOP)


def test_part_includes_what_it_queued():
    recorder, queued = Recorder(), []
    recorder.wait = lambda: [time.sleep(queued.pop()) for _ in list(queued)]
    recorder.start()
    recorder.part(FORWARD)
    queued.append(0.05)
    recorder.part(BACKWARD)
    recorder.end_step(7)
    found = lengths(recorder.stop()[0])
    assert found[FORWARD] >= 0.05 > found[BACKWARD]


def test_parts_measured_elsewhere_stay_in_order():
    """A clock that was set in between makes no part begin before the one before it, or after the present."""
    recorder = Recorder()
    recorder.start()
    recorder.part(FORWARD)
    before = now()
    recorder.parts_at([(BACKWARD, before - 10**12), (UPDATE, before + 10**12)])
    recorder.part(LOOP)
    recorder.end_step(0)
    (step,) = recorder.stop()
    assert all(part.end >= part.begin for part in step.parts)
    assert all(a.end == b.begin for a, b in itertools.pairwise(step.parts))
    assert step.end - step.begin < 10**10


def test_messages_belong_to_the_step_in_which_they_were_given():
    recorder = Recorder()
    recorder.start()
    recorder.enqueued("a")
    recorder.end_step(0)
    recorder.enqueued("b")
    recorder.end_step(1)
    assert [[name for name, _ in step.enqueued] for step in recorder.stop()] == [["a"], ["b"]]
