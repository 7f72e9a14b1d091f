"""How far apart two cores are."""

import os
import threading

import pytest

from hvdtrain.measure.bench import core_to_core


def test_a_measurement_and_its_reply(monkeypatch):
    """In two threads, which take turns every 5 ms; the cores are measured by two processes."""
    monkeypatch.setattr(core_to_core, "ROUND_TRIPS", 3)
    monkeypatch.setattr(core_to_core, "MEASUREMENTS", 2)
    monkeypatch.setattr(core_to_core, "LIMIT_S", 60)
    shared = bytearray(4 * core_to_core.INTS)
    replier = threading.Thread(target=core_to_core._reply, args=(shared,))
    replier.start()
    trip_s = core_to_core._measure(core_to_core._values(shared), replier.is_alive)
    monkeypatch.setattr(core_to_core, "MAX_LOOKS", 0)
    core_to_core._values(shared)[core_to_core.CALL] = 8  # the next turn, after which it gives up
    replier.join(60)
    assert not replier.is_alive()
    assert trip_s is not None
    assert trip_s > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_processes_measure_and_leave_none():
    trip_s = core_to_core.round_trip_s()
    assert trip_s is None or 1e-8 < trip_s < 5e-3  # None where other processes take the cores
    assert not core_to_core.multiprocessing.active_children()


def test_one_core_has_no_other(monkeypatch):
    monkeypatch.setattr(core_to_core.os, "sched_getaffinity", lambda _: {0})
    assert core_to_core.round_trip_s() is None


@pytest.mark.parametrize("alive", [True, False])
def test_a_process_that_does_not_reply_ends_the_measurement(monkeypatch, alive):
    monkeypatch.setattr(core_to_core, "MAX_LOOKS", 1000)
    monkeypatch.setattr(core_to_core, "START_S", 0.1)
    values = memoryview(bytearray(4 * core_to_core.INTS)).cast("i")
    assert core_to_core._measure(values, lambda: alive) is None  # has not started
    values[core_to_core.REPLY] = 1
    assert core_to_core._measure(values, lambda: alive) is None  # does not answer


def test_without_room_for_a_process_nothing_is_measured(monkeypatch):
    def fail(*_):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(core_to_core.multiprocessing.get_context("spawn").Process, "start", fail)
    assert core_to_core.round_trip_s() is None
