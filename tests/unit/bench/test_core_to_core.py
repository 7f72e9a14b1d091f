"""How far apart two cores are."""

import os

import pytest

from hvdtrain.bench import core_to_core


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_round_trip_takes_time_and_leaves_no_process():
    trip_s = core_to_core.round_trip_s()
    assert trip_s is None or 1e-8 < trip_s < 1  # None where other processes take the cores
    assert not core_to_core.multiprocessing.active_children()


def test_one_core_has_no_other(monkeypatch):
    monkeypatch.setattr(core_to_core.os, "sched_getaffinity", lambda _: {0})
    assert core_to_core.round_trip_s() is None


def test_a_process_that_does_not_reply_ends_the_measurement(monkeypatch):
    monkeypatch.setattr(core_to_core, "MOST_LOOKS", 1000)
    values = memoryview(bytearray(4 * core_to_core.INTS)).cast("i")
    values[core_to_core.REPLY] = 1
    assert core_to_core._measure(values, 0) is None
    values[core_to_core.REPLY] = 0
    assert core_to_core._measure(values, 0) is None
