"""Which ranks run, from files that other processes may write at any time and with any clock."""

import itertools
import sys
import threading
import time

import pytest
from support.untrusted import save_checkpoint

from hvdtrain.runs import checkpoints, shards
from hvdtrain.system import files
from hvdtrain.training import heartbeats
from hvdtrain.training.heartbeats import Heartbeat, Heartbeats, Observation, explain, place_of, state_of


@pytest.fixture
def observer(tmp_path):
    """Rank 0 of three; rank 1 runs, and rank 2 has stopped."""

    def of(rank):
        def current(number):
            return Heartbeat(rank, 10 + rank, "host", 7, "step", True, 0.0, number)

        return Heartbeats(tmp_path, rank, lambda: range(3), current)

    running, stopped = of(1), of(2)
    for beats in (running, stopped):
        beats.start()
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
    slow = Heartbeats(tmp_path, 0, lambda: [0], lambda number: Heartbeat(0, 1, "host", 7, "step", True, 0.0, number))
    slow.start()
    assert slow.silent_s == heartbeats.SILENT_S
    assert written.wait(30)
    slow.stop(10)
    assert slow.silent_s > heartbeats.SILENT_S


def beat(rank, step=7, doing="step", idle_s=40.0):
    return Heartbeat(rank, 10 + rank, f"host{rank}", step, doing, doing == "step", idle_s, number=3)


def observed(*beats, silent=()):
    return Observation({beat.rank: beat for beat in beats}, frozenset(silent))


FOLDER = "no heartbeat file of rank 2: the run's folder may not be on a shared disk"


@pytest.mark.parametrize(
    ("seen", "size", "expected"),
    [
        (observed(beat(0), beat(1), silent=[1]), 2, "no heartbeat of rank 1 (process 11 on host1, step 7): it is"),
        (observed(beat(0), beat(1)), 3, FOLDER),
        (observed(beat(0), beat(1, doing="x.py:3 in f")), 2, "rank 1 (process 11 on host1) is at x.py:3 in f, step 7"),
        (observed(beat(0, step=8), beat(1, step=7), beat(2, step=8)), 3, "rank 1 (process 11 on host1) is at step"),
        (observed(beat(0), beat(1)), 2, "no step for 40 s: all ranks are at step, step 7"),
    ],
)
def test_explanation_of_a_hang(seen, size, expected):
    assert expected in explain(seen, range(size), 40.0)


def test_rank_that_makes_progress_works():
    """As rank 0 does in a slow folder, while the others wait for it."""
    assert not observed(beat(0), beat(1)).works(within_s=15.0)
    assert observed(beat(0), beat(1, idle_s=2.0)).works(within_s=15.0)
    assert not observed(beat(0), beat(1, idle_s=2.0), silent=[1]).works(within_s=15.0)


def test_a_place_is_that_of_the_innermost_function():
    assert "in test_a_place_is_that" in place_of(sys._getframe())
    assert place_of(None) == "its end"


def test_each_file_of_a_checkpoint_changes_the_state(tmp_path, monkeypatch):
    """Although it is written, and read back, at the same place in the code: each may be slow."""
    states = []

    def slow_open(*arguments, **options):
        states.append(state_of(sys._getframe()))
        return open(*arguments, **options)

    for module in (checkpoints, shards, files):
        monkeypatch.setattr(module, "open", slow_open, raising=False)
    for _ in range(3):
        save_checkpoint(tmp_path / "checkpoints", keep=1)
    assert states and not [before for before, after in itertools.pairwise(states) if before == after]
