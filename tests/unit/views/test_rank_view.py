"""Which ranks run, seen by changes of their heartbeats only, also in folders that show them late."""

import json

import pytest
from support.run_folders import write_beat, write_changes, write_records, write_run

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


def survivors(folder, back=False, gone=(2,), **of_rank_2):
    """A run of four ranks that lost rank 2, of which `gone` are silent."""
    write_records(write_run(folder, ranks=4, shards=16), 150)
    write_changes(folder, back)
    for rank in range(4):
        write_beat(folder, rank, age_s=40.0 * (rank in gone), **(of_rank_2 if rank == 2 else {}))
    return RunFollower(folder).look()


def test_a_rank_that_was_lost_is_not_a_silent_one(tmp_path):
    view = survivors(tmp_path / "run")
    assert view.state.name == "training" and view.state.rank == 2 and view.ranks_text == "3/4"
    assert view.state.reason.startswith("3 of 4 ranks: rank 2 on node2 lost at step 120 (was killed by SIGKILL)")
    assert [rank.is_member for rank in view.ranks] == [True, True, False, True]
    assert view.ranks[2].remark == "lost at step 120" and view.ranks[2].to_json()["is_member"] is False
    assert view.ranks[2].images_per_s is view.ranks[2].shares is None


def test_a_rank_that_joined_again_is_like_the_others(tmp_path):
    view = survivors(tmp_path / "run", back=True, gone=())
    assert (view.state, view.ranks_text) == (("training", "", None), "4")
    assert all(rank.is_member for rank in view.ranks)


def test_a_silent_survivor_is_waited_for(tmp_path):
    view = survivors(tmp_path / "run", gone=(1, 2))
    assert (view.state.name, view.state.rank) == ("waiting", 1)
    assert "no heartbeat of rank 1 (" in view.state.reason


def test_a_replacement_that_has_not_joined_is_not_waited_for(tmp_path):
    """Its heartbeat is newer than the record of the loss."""
    view = survivors(tmp_path / "run", gone=(), step=0, pid=7, idle_s=30.0)
    assert view.state.name == "training", "rank 2 was lost just now, or its replacement starts"
    write_beat(tmp_path / "run", 2, number=2, age_s=-5.0, step=0, pid=7, idle_s=30.0)
    view = RunFollower(tmp_path / "run").look()
    assert view.ranks[2].remark.startswith("starts") and view.state.name == "training" and view.size_now == 3


def test_ranks_beyond_the_first_ones_are_shown(tmp_path):
    folder = write_run(tmp_path / "run", ranks=2)
    for rank in range(3):
        write_beat(folder, rank)
    record = {"kind": "members", "step": 9, "time": 2e9, "number": 2, "ranks": [0, 1, 2], "joined": [2]}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    view = RunFollower(folder).look()
    assert [rank.rank for rank in view.ranks] == [0, 1, 2] and view.ranks_text == "3/2"
    (folder / "metrics.jsonl").write_text(json.dumps({**record, "time": 1e9}) + "\n")
    assert RunFollower(folder).look().ranks_text == "2", "the record is of an earlier job"


@pytest.mark.parametrize(
    "odd", [{"ranks": [0, 0]}, {"ranks": "x"}, {"hosts": 3}, {"time": "x"}, {"number": -1}, {"lost": [1]}]
)
def test_odd_records_of_members(tmp_path, odd):
    folder = write_run(tmp_path / "run", ranks=2)
    for rank in range(2):
        write_beat(folder, rank, age_s=40.0 * rank)
    record = {"kind": "members", "step": 9, "time": 2e9, "number": 2, "ranks": [0], **odd}
    (folder / "metrics.jsonl").write_text(json.dumps({"lost": [{"rank": 1, "why": "\x1b"}], **record}) + "\n")
    view = RunFollower(folder).look()
    assert view.state.name in ("training", "waiting") and view.state.reason.isprintable()
