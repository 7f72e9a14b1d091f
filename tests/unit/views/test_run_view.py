"""What a run is doing, from its files: heartbeats as ranks write them, and the record of its end."""

import json
import os
import time
from pathlib import Path

import pytest
from support.run_folders import write_beat, write_run

from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.run_view import RunFollower, newest_run, read_runs


def make_run(folder, ranks=2):
    return write_run(folder, ranks, strategy="ring")


def state(folder):
    return RunFollower(folder).look().state


NO_BEAT = "no heartbeat of rank 1 (process 1001 on node1, step 150)"


@pytest.mark.parametrize(
    ("beats", "name", "rank", "reason"),
    [
        ([{}, {}], "training", None, ""),
        ([{"idle_s": 3.5}, {"age_s": 4}], "waiting", 1, NO_BEAT),
        ([{"idle_s": 3.5}, {"idle_s": 3.5, "doing": "train.py:31 in load"}], "waiting", 1, "is at train.py:31 in load"),
        ([{"age_s": 40}, {"age_s": 40}], "failed", None, "no heartbeat of any rank since 20"),
        ([{"step": 0, "idle_s": 20.0}] * 2, "starting", None, "no step for 20 s"),
    ],
    ids=["steps", "silent rank", "rank outside of the step", "all are silent", "before the first step"],
)
def test_state_by_heartbeats(tmp_path, beats, name, rank, reason):
    folder = make_run(tmp_path / "run")
    for number, values in enumerate(beats):
        write_beat(folder, number, **values)
    actual = state(folder)
    assert (actual.name, actual.rank) == (name, rank) and reason in actual.reason
    assert bool(reason) == bool(actual.reason)


@pytest.mark.parametrize("status", ["finished", "stopped", "failed", "hung", "restarting"])
def test_the_end_that_was_recorded_counts(tmp_path, status):
    folder = make_run(tmp_path / "run")
    write_beat(folder, 0, age_s=3)
    failure = Failure("rank 1 on node1 was killed by SIGKILL", rank=1, host="node1", stands_alone=True)
    RunEnd(status, 1, failure).write(folder)
    assert state(folder) == (status, "rank 1 on node1 was killed by SIGKILL", None if status == "stopped" else 1)


def test_a_restart_that_does_not_come_has_failed(tmp_path):
    folder = make_run(tmp_path / "run")
    failure = Failure("rank 1 was killed", rank=1, host="node1", stands_alone=True)
    RunEnd("restarting", 137, failure, time.time() - 1000).write(folder)
    assert state(folder) == ("failed", "rank 1 was killed", 1)
    (folder / "lock-1.json").touch()
    assert state(folder).name == "restarting", "rank 0 of the next attempt is there"


def test_a_run_that_goes_on_after_a_recorded_end_is_training(tmp_path):
    folder = make_run(tmp_path / "run")
    RunEnd("hung", 1, Failure("no step for 30 s"), time=time.time() - 20).write(folder)
    for rank in range(2):
        write_beat(folder, rank)
    assert state(folder).name == "training"


def test_a_run_that_cannot_be_read_has_not_failed(tmp_path, monkeypatch):
    assert state(tmp_path / "removed") == ("waiting", "its folder cannot be read (No such file or directory)", None)
    folder = make_run(tmp_path / "run")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "config.json")  # for root, all can be read
    assert state(folder) == ("waiting", "its folder cannot be read (config.json: Permission denied)", None)


def test_a_run_before_its_first_heartbeat(tmp_path):
    folder = make_run(tmp_path / "run")
    assert state(folder) == ("failed", "it ended before its first step", None)
    (folder / "lock-1.json").touch()
    assert state(folder).name == "starting"


@pytest.mark.parametrize("age_s", [900, -900])
def test_living_ranks_are_recognized_where_clocks_differ(tmp_path, monkeypatch, age_s):
    """The heartbeats look old by this host's clock, or of the future, but they change while one looks."""
    folder = make_run(tmp_path / "run", ranks=1)
    write_beat(folder, 0, number=1, age_s=age_s)
    monkeypatch.setattr(time, "sleep", lambda _: write_beat(folder, 0, number=2, age_s=age_s - 0.5))
    assert [view.state.name for view in read_runs([folder])] == ["training"]


def test_speed_and_shares_of_a_rank_are_those_between_two_looks(tmp_path):
    folder = make_run(tmp_path / "run", ranks=1)
    follower = RunFollower(folder)
    write_beat(folder, 0, number=1, age_s=1.0, rows=1000, compute_s=50.0, communicate_s=0.0)
    follower.look()
    write_beat(folder, 0, number=2, rows=1400, compute_s=50.6, communicate_s=0.3, data_s=0.1)
    (rank,) = follower.look().ranks
    assert rank.images_per_s == pytest.approx(400, rel=0.05)
    assert rank.shares == pytest.approx((0.6, 0.3, 0.1))


@pytest.mark.parametrize("known", [True, False])
def test_a_slow_rank_has_a_remark_if_waiting_is_known(tmp_path, known):
    """Without a measured time of communication, waiting counts as computing, which would name the wrong rank."""
    folder = make_run(tmp_path / "run")
    for rank, compute_s in enumerate((5.0, 9.8)):
        write_beat(folder, rank, compute_s=compute_s, communicate_s=10 - compute_s if known else None)
    view = RunFollower(folder).look()
    assert [bool(rank.remark) for rank in view.ranks] == [False, known]
    assert view.state.rank == (1 if known else None)


def test_the_time_that_is_left_follows_from_the_newest_record(tmp_path):
    folder = make_run(tmp_path / "run")
    record = {"kind": "train", "step": 370, "epoch": 3.7, "loss": 1.0, "images_per_s": 128.0}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + '\n{"kind": "train", "st')
    write_beat(folder, 0, step=370)
    view = RunFollower(folder).look()
    assert (view.last_step, view.left_s, view.loss) == (400, 15.0, 1.0)


def test_the_newest_run_is_that_which_wrote_last(tmp_path):
    for name in ("b", "a"):
        make_run(tmp_path / name)
    write_beat(tmp_path / "a", 0, age_s=-5)
    for path in (tmp_path / "b", tmp_path / "b" / "config.json"):
        os.utime(path, (0, 0))
    assert newest_run(tmp_path).name == "a"
