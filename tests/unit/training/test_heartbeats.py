"""Which ranks run, from files that other processes may write at any time and with any clock."""

import threading
import time

import pytest

from hvdtrain.training import heartbeats
from hvdtrain.training.hang_report import Heartbeat
from hvdtrain.training.heartbeats import Heartbeats


@pytest.fixture
def observer(tmp_path):
    """Rank 0 of three; rank 1 runs, and rank 2 has stopped."""

    def of(rank):
        return Heartbeats(tmp_path, rank, 3, lambda number: Heartbeat(rank, 10 + rank, "host", 7, "step", 0.0, number))

    running, stopped = of(1), of(2)
    for one in (running, stopped):
        one.start()
    stopped.stop(10)
    yield of(0)
    running.stop(10)


def test_only_a_rank_whose_heartbeat_does_not_change_is_silent(observer, monkeypatch):
    monkeypatch.setattr(heartbeats, "SILENT_S", 1.5)
    seen = observer.observe()
    assert (seen.living, seen.silent) == ([0, 1], {2})


def test_slow_folder_gets_more_time(tmp_path, monkeypatch):
    """A heartbeat that takes a second in this rank may take a second in others."""
    written = threading.Event()

    def write(*_):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(1.5)
            written.set()

    monkeypatch.setattr(heartbeats, "write_atomically", write)
    slow = Heartbeats(tmp_path, 0, 1, lambda number: Heartbeat(0, 1, "host", 7, "step", 0.0, number))
    slow.start()
    assert slow.silent_s == heartbeats.SILENT_S
    assert written.wait(30)
    slow.stop(10)
    assert slow.silent_s > heartbeats.SILENT_S
