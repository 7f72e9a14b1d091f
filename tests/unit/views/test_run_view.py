"""What a run is doing, from its files: heartbeats as ranks write them, and the record of its end."""

import json
import os
import time
from pathlib import Path

import pytest

from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.run_view import RunFollower, newest_run, read_runs

OPTIONS = {"framework": "torch", "strategy": "ring", "epochs": 2, "batch_size": 64}


def make_run(folder, ranks=2, **config):
    folder.mkdir(parents=True)
    recorded = {"config": OPTIONS, "ranks": ranks, "started": "2026-05-01T14:03:11+0000", **config}
    (folder / "config.json").write_text(json.dumps(recorded))
    return folder


def beat(folder, rank, number=1, age_s=0.0, now=None, **values):
    """Write a heartbeat, as if it had been written `age_s` before `now`."""
    content = {"rank": rank, "pid": 10 + rank, "host": "node1", "step": 5, "doing": "step", "idle_s": 0.1}
    path = folder / "heartbeats" / f"rank-{rank}.json"
    path.parent.mkdir(exist_ok=True)
    content = {**content, "number": number, **values}
    path.write_text(json.dumps({"waits": content["doing"] == "step", **content}))
    os.utime(path, ((now or time.time()) - age_s,) * 2)


def state(folder):
    return RunFollower(folder).look().state


def test_a_job_that_makes_steps_is_training(tmp_path):
    for rank in range(2):
        beat(make_run(tmp_path / "run") if not rank else tmp_path / "run", rank)
    assert state(tmp_path / "run")[:2] == ("training", "")


def test_a_silent_rank_is_named(tmp_path):
    folder = make_run(tmp_path / "run")
    beat(folder, 0, idle_s=3.5)
    beat(folder, 1, age_s=4)
    actual = state(folder)
    assert (actual.name, actual.rank) == ("waiting", 1)
    assert "no heartbeat of rank 1 (process 11 on node1, step 5)" in actual.reason


def test_a_rank_outside_of_the_step_is_named(tmp_path):
    folder = make_run(tmp_path / "run")
    beat(folder, 0, idle_s=3.5)
    beat(folder, 1, idle_s=3.5, doing="train.py:31 in load")
    actual = state(folder)
    assert (actual.name, actual.rank) == ("waiting", 1)
    assert "is at train.py:31 in load" in actual.reason


def test_ranks_that_are_all_silent_were_killed(tmp_path):
    folder = make_run(tmp_path / "run")
    for rank in range(2):
        beat(folder, rank, age_s=40)
    assert state(folder).name == "failed"
    assert "no heartbeat of any rank since 20" in state(folder).reason


@pytest.mark.parametrize("status", ["finished", "stopped", "failed", "hung", "restarting"])
def test_the_end_that_was_recorded_counts(tmp_path, status):
    folder = make_run(tmp_path / "run")
    beat(folder, 0, age_s=3)
    RunEnd(status, 1, Failure("rank 1 on node1 was killed by SIGKILL", rank=1, host="node1", stands_alone=True)).write(
        folder
    )
    assert state(folder) == (status, "rank 1 on node1 was killed by SIGKILL", None if status == "stopped" else 1)


def test_a_restart_that_does_not_come_has_failed(tmp_path):
    folder = make_run(tmp_path / "run")
    RunEnd(
        "restarting", 137, Failure("rank 1 was killed", rank=1, host="node1", stands_alone=True), time.time() - 1000
    ).write(folder)
    assert state(folder) == ("failed", "rank 1 was killed", 1)
    (folder / "lock-1.json").touch()
    assert state(folder).name == "restarting", "rank 0 of the next attempt is there"


def test_a_run_that_goes_on_after_a_recorded_end_is_training(tmp_path):
    folder = make_run(tmp_path / "run")
    RunEnd("hung", 1, Failure("no step for 30 s"), time=time.time() - 20).write(folder)
    for rank in range(2):
        beat(folder, rank)
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


def test_living_ranks_are_recognized_where_clocks_differ(tmp_path, monkeypatch):
    """The heartbeats look old by this host's clock, but they change while one looks."""
    folder = make_run(tmp_path / "run", ranks=1)
    beat(folder, 0, number=1, age_s=900)
    monkeypatch.setattr(time, "sleep", lambda _: beat(folder, 0, number=2, age_s=899.5))
    assert [view.state.name for view in read_runs([folder])] == ["training"]


def test_speed_and_shares_of_a_rank_are_those_between_two_looks(tmp_path):
    folder = make_run(tmp_path / "run", ranks=1)
    follower, now = RunFollower(folder), time.time()
    beat(folder, 0, number=1, age_s=1.0, now=now, rows=1000, compute_s=50.0, communicate_s=0.0, data_s=0.0)
    follower.look()
    beat(folder, 0, number=2, now=now, rows=1400, compute_s=50.6, communicate_s=0.3, data_s=0.1)
    (rank,) = follower.look().ranks
    assert rank.images_per_s == pytest.approx(400, rel=0.01)
    assert rank.shares == pytest.approx((0.6, 0.3, 0.1))


@pytest.mark.parametrize("known", [True, False])
def test_a_slow_rank_has_a_remark_if_waiting_is_known(tmp_path, known):
    """Without a measured time of communication, waiting counts as computing, which would name the wrong rank."""
    folder = make_run(tmp_path / "run")
    beat(folder, 0, compute_s=5.0, communicate_s=5.0 if known else None, data_s=0.0)
    beat(folder, 1, compute_s=9.8, communicate_s=0.2 if known else None, data_s=0.0)
    view = RunFollower(folder).look()
    assert [bool(rank.remark) for rank in view.ranks] == [False, known]
    assert view.state.rank == (1 if known else None)


def test_the_time_that_is_left_follows_from_the_newest_record(tmp_path):
    folder = make_run(tmp_path / "run", steps=40)
    record = {"kind": "train", "step": 10, "epoch": 0.5, "loss": 1.0, "images_per_s": 128.0}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + '\n{"kind": "train", "st')
    beat(folder, 0, step=10)
    view = RunFollower(folder).look()
    assert (view.last_step, view.left_s, view.loss) == (40, 15.0, 1.0)


def test_the_newest_run_is_that_which_wrote_last(tmp_path):
    for name in ("b", "a"):
        make_run(tmp_path / name)
    beat(tmp_path / "a", 0, age_s=-5)
    for path in (tmp_path / "b", tmp_path / "b" / "config.json"):
        os.utime(path, (0, 0))
    assert newest_run(tmp_path).name == "a"
