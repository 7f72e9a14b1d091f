"""What a run and its ranks do, from files: heartbeats, also in folders that show them late, ends, changes, logs."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.run_folders import write_beat, write_changes, write_records, write_run

from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views import run_state
from hvdtrain.views.details import LogMessage, joined_messages, last_messages
from hvdtrain.views.run_view import RunFollower, read_runs


def state(folder):
    return RunFollower(folder).look().state


NO_BEAT = "no heartbeat of rank 1 (process 1001 on node1, step 150)"


KILLED = Failure("rank 1 on node1 was killed by SIGKILL", rank=1, host="node1", stands_alone=True)


@pytest.mark.parametrize(
    ("beats", "name", "rank", "reason"),
    [
        ([{}, {}], "training", None, ""),
        ([{"idle_s": 3.5}, {"age_s": 4}], "waiting", 1, NO_BEAT),
        ([{"idle_s": 3.5}, {"idle_s": 3.5, "doing": "train.py:31 in load"}], "waiting", 1, "is at train.py:31 in load"),
        ([{"age_s": 40}, {"age_s": 40}], "failed", None, "no heartbeat of any rank since 20"),
        ([{"step": 0, "idle_s": 20.0}] * 2, "starting", None, "no step for 20 s"),
        ([{}, {}, {"age_s": 60}], "training", None, ""),
        ([{"compute_s": 5.0, "communicate_s": 5.0}, {"compute_s": 9.8, "communicate_s": 0.2}], "training", 1, "slow"),
        # Where the time of communication is not known, waiting counts as computing.
        ([{"compute_s": 5.0, "communicate_s": None}, {"compute_s": 9.8, "communicate_s": None}], "training", None, ""),
    ],
    ids=["steps", "silent rank", "rank outside of the step", "all are silent", "before the first step",
         "rank of an attempt with more", "slow rank", "a time that is not known"],
)  # fmt: skip
def test_state_by_heartbeats(tmp_path, beats, name, rank, reason):
    folder = write_run(tmp_path / "run")
    for number, values in enumerate(beats):
        write_beat(folder, number, **values)
    actual = state(folder)
    assert (actual.name, actual.rank) == (name, rank) and reason in actual.reason
    assert bool(reason) == bool(actual.reason)


@pytest.mark.parametrize("status", ["finished", "stopped", "failed", "hung", "restarting"])
def test_the_end_that_was_recorded_counts(tmp_path, status):
    folder = write_run(tmp_path / "run")
    write_beat(folder, 0, age_s=3)
    RunEnd(status, 1, KILLED).write(folder)
    assert state(folder) == (status, KILLED.reason, None if status == "stopped" else 1)


def test_a_restart_that_does_not_come_has_failed(tmp_path):
    folder = write_run(tmp_path / "run")
    RunEnd("restarting", 137, KILLED, time.time() - 1000).write(folder)
    assert state(folder) == ("failed", KILLED.reason, 1)
    (folder / "lock-1.json").touch()
    assert state(folder).name == "restarting", "rank 0 of the next attempt is there"


def test_a_run_that_goes_on_after_a_recorded_end_is_training(tmp_path):
    folder = write_run(tmp_path / "run")
    RunEnd("hung", 1, Failure("no step for 30 s"), time=time.time() - 20).write(folder)
    (folder / "result.json").write_text('{"loss": 0.5, "images_per_s": 9.0, "steps": 300}')
    for rank in range(2):
        write_beat(folder, rank)
    view = RunFollower(folder).look()
    assert view.state.name == "training"
    assert view.evaluated_loss is view.images_per_s is None and view.step == 150, "the result is of before"


def test_a_run_that_cannot_be_read_has_not_failed(tmp_path, monkeypatch):
    assert state(tmp_path / "removed") == ("waiting", "its folder cannot be read (No such file or directory)", None)
    folder = write_run(tmp_path / "run")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "config.json")  # for root, all can be read
    assert state(folder) == ("waiting", "its folder cannot be read (config.json: Permission denied)", None)


@pytest.mark.parametrize("age_s", [900, -900])
def test_living_ranks_are_recognized_where_clocks_differ(tmp_path, monkeypatch, age_s):
    """The heartbeats look old by this host's clock, or of the future, but they change while one looks."""
    folder = write_run(tmp_path / "run", ranks=1)
    write_beat(folder, 0, number=1, age_s=age_s)
    monkeypatch.setattr(time, "sleep", lambda _: write_beat(folder, 0, number=2, age_s=age_s - 0.5))
    assert [view.state.name for view in read_runs([folder])] == ["training"]


def test_speed_and_shares_of_a_rank_are_those_between_two_looks(tmp_path):
    folder = write_run(tmp_path / "run", ranks=1)
    follower = RunFollower(folder)
    write_beat(folder, 0, number=1, age_s=1.0, rows=1000, compute_s=50.0, communicate_s=0.0)
    follower.look()
    write_beat(folder, 0, number=2, rows=1400, compute_s=50.6, communicate_s=0.3, data_s=0.1)
    (rank,) = follower.look().ranks
    assert rank.images_per_s == pytest.approx(400, rel=0.05)
    assert rank.shares == pytest.approx((0.6, 0.3, 0.1))


def test_the_time_that_is_left_follows_from_the_newest_record(tmp_path):
    folder = write_run(tmp_path / "run")
    record = {"kind": "train", "step": 370, "epoch": 3.7, "loss": 1.0, "images_per_s": 128.0}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + '\n{"kind": "train", "st')
    write_beat(folder, 0, step=370)
    view = RunFollower(folder).look()
    assert (view.last_step, view.left_s, view.loss) == (400, 15.0, 1.0)


def test_messages_of_all_ranks_are_in_the_order_of_time(tmp_path):
    (tmp_path / "logs").mkdir()
    said = "2026-05-01 14:03:1{0},000 INFO rank {1}\x1b[31m\n2026-05-01 14:03:1{2},000 WARNING w\nTraceback\n2026"
    for rank, (first, last) in enumerate([(3, 5), (2, 4)]):
        (tmp_path / "logs" / f"rank-{rank}.log").write_text(said.format(first, rank, last))
    messages = last_messages(tmp_path)[-3:]
    assert [(message.ranks, message.time[-1]) for message in messages] == [([0], "3"), ([1], "4"), ([0], "5")]
    assert messages[0].text == "rank 0\\x1b[31m"
    assert sum(message.level == "WARNING" for message in last_messages(tmp_path)) == 2


def test_after_rank_0_was_lost_the_next_rank_tells_how_training_goes():
    said = [
        ("14:03:11", 0, "epoch 1"), ("14:03:11", 1, "epoch 1, on rank 1"), ("14:05:20", 1, "epoch 2"),
        ("14:05:20", 2, "epoch 2, on rank 2"), ("14:07:01", 0, "epoch 3"), ("14:07:01", 1, "epoch 3"),
    ]  # fmt: skip
    messages = [LogMessage(f"2026-05-01 {time}", [rank], "INFO", text) for time, rank, text in said]
    assert [(one.ranks[0], one.text) for one in joined_messages(messages)] == [
        (0, "epoch 1"), (1, "epoch 2"), (0, "epoch 3"),
    ]  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1e9, monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr(run_state, "time", clock)
    return clock


def look_after(watch, folder, clock, seconds):
    """Looks twice a second; whether the rank is silent after these seconds."""
    for _ in range(round(2 * seconds)):
        clock.now += 0.5
        (view,) = watch.look(run_state.read_beats(folder))
    return view.is_silent


def test_a_rank_is_silent_later_where_the_folder_shows_heartbeats_late(tmp_path, clock):
    watch, folder = run_state.RankWatch(), tmp_path
    for number in (1, 2, 3):  # every heartbeat is seen
        write_beat(folder, 0, number, time=clock.now)
        assert not look_after(watch, folder, clock, 0.5)
    assert look_after(watch, folder, clock, 1.5)
    write_beat(folder, 0, 12, time=clock.now)  # it had written nine others meanwhile
    assert not look_after(watch, folder, clock, 3)
    assert look_after(watch, folder, clock, 3)


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
