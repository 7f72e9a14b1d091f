"""Which ranks run, seen by changes of their heartbeats only, also in folders that show them late."""

import json

import pytest
from support.run_folders import write_beat, write_records, write_run

from hvdtrain.views import rank_view
from hvdtrain.views.run_view import RunFollower


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now = 1e9

    def monotonic(self):
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rank_view, "time", clock)
    return clock


def look_after(watch, folder, clock, seconds):
    """Looks twice a second; whether the rank is silent after these seconds."""
    for _ in range(round(2 * seconds)):
        clock.now += 0.5
        (view,) = watch.look(rank_view.read_beats(folder))
    return view.is_silent


def test_a_rank_is_silent_later_where_the_folder_shows_heartbeats_late(tmp_path, clock):
    watch, folder = rank_view.RankWatch(), tmp_path
    for number in (1, 2, 3):  # every heartbeat is seen
        write_beat(folder, 0, number, time=clock.now)
        assert not look_after(watch, folder, clock, 0.5)
    assert look_after(watch, folder, clock, 1.5)
    write_beat(folder, 0, 12, time=clock.now)  # it had written nine others meanwhile
    assert not look_after(watch, folder, clock, 3)
    assert look_after(watch, folder, clock, 3)


def test_a_rank_that_was_stopped_does_not_make_the_folder_a_late_one(tmp_path, clock):
    watch, folder = rank_view.RankWatch(), tmp_path
    write_beat(folder, 0, 1, time=clock.now)
    assert look_after(watch, folder, clock, 4)
    write_beat(folder, 0, 2, time=clock.now)
    assert not look_after(watch, folder, clock, 1)
    assert look_after(watch, folder, clock, 1)


def test_ranks_of_an_attempt_with_more_ranks_do_not_count(tmp_path):
    folder = write_run(tmp_path / "run", ranks=2)
    for rank in range(3):
        write_beat(folder, rank, age_s=60.0 * (rank == 2))
    view = RunFollower(folder).look()
    assert [one.rank for one in view.ranks] == [0, 1]
    assert view.state.name == "training"


@pytest.mark.parametrize(("images_per_s", "state"), [(1000.0, "waiting"), (20.0, "training")])
def test_long_steps_are_not_waiting(tmp_path, images_per_s, state):
    """With 64 images in 3.2 s, 4 s without a step are usual."""
    folder = write_run(tmp_path / "run")
    write_records(folder, 5)
    record = {**json.loads((folder / "metrics.jsonl").read_text()), "images_per_s": images_per_s}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    for rank in range(2):
        write_beat(folder, rank, idle_s=4.0)
    assert RunFollower(folder).look().state.name == state


def test_a_run_is_starting_until_its_first_step(tmp_path):
    folder = write_run(tmp_path / "run")
    for rank in range(2):
        write_beat(folder, rank, step=0, idle_s=20.0)
    assert RunFollower(folder).look().state.name == "starting"
