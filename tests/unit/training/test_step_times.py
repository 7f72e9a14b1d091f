"""Where a rank's time goes: the parts of an interval are its time, whatever is between intervals."""

import json
import time
from types import SimpleNamespace

import pytest
from support.fake_learner import numbered, use_fakes

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.runs import metrics
from hvdtrain.runs.step_times import StepTime, from_record, to_record
from hvdtrain.system import stopwatch
from hvdtrain.system.stopwatch import Stopwatch
from hvdtrain.training import step_times
from hvdtrain.training.step_times import StepTimer, as_columns, from_columns
from hvdtrain.training.train import train


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    clock = SimpleNamespace(now=100.0)
    for module in (stopwatch, step_times):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_parts_of_an_interval_are_its_time(clock):
    group, waiting = SimpleNamespace(communicate_s=5.0), Stopwatch()
    timer = StepTimer(group, waiting)
    clock.now += 50  # before the first step
    timer.start()
    clock.now += 1
    timer.start()  # it has begun
    with waiting:
        clock.now += 0.5
        assert timer.total == pytest.approx((1.0, 0.0, 0.5)), "it is read while it runs"
    group.communicate_s += 2
    clock.now += 2
    assert timer.stop() == pytest.approx((1.0, 2.0, 0.5))
    group.communicate_s += 100  # of an evaluation
    clock.now += 100
    assert timer.total == pytest.approx((1.0, 2.0, 0.5))
    timer.start()
    clock.now += 3
    assert timer.stop() == pytest.approx((3.0, 0.0, 0.0)) and timer.total == pytest.approx((4.0, 2.0, 0.5))


def test_work_in_a_pause_belongs_to_no_step(clock):
    group = SimpleNamespace(communicate_s=0.0)
    timer = StepTimer(group, Stopwatch())
    timer.start()
    clock.now += 1
    timer.pause()
    clock.now += 10  # ranks compare their weights
    group.communicate_s += 4
    timer.start()
    clock.now += 2
    assert timer.stop() == pytest.approx((3.0, 0.0, 0.0)) and timer.total == pytest.approx((3.0, 0.0, 0.0))
    timer.start()
    clock.now += 5
    assert timer.stop() == pytest.approx((5.0, 0.0, 0.0)), "the next interval begins at nothing"


def test_what_cannot_be_told_is_computing(clock):
    group, waiting = SimpleNamespace(communicate_s=None), Stopwatch()
    timer = StepTimer(group, waiting)
    timer.start()
    clock.now += 3
    assert timer.stop() == StepTime(3.0, None, 0.0)
    assert timer.total.communicate is None


def test_records_have_a_number_for_each_rank():
    own = [StepTime(1.23456, 0.5, 0.0), StepTime(0.000123456, 0.25, 12.5)]
    columns = sum(as_columns(one, rank, 2) for rank, one in enumerate(own))
    expected = {"compute_s": [1.235, 0.0001235], "communicate_s": [0.5, 0.25], "data_s": [0.0, 12.5]}
    assert to_record(from_columns(columns)) == expected
    assert from_record(expected) == [StepTime(1.235, 0.5, 0.0), StepTime(0.0001235, 0.25, 12.5)]
    columns = as_columns(own[0], 0, 2) + as_columns(own[1]._replace(communicate=None), 1, 2)
    assert from_columns(columns) == [StepTime(1.23456, None, 0.0), StepTime(0.000123456, None, 12.5)]


def test_a_run_records_its_times_and_shows_them_in_heartbeats(tmp_path, monkeypatch):
    learners = use_fakes(monkeypatch, numbered(64))
    began = time.time()
    config = Config(framework="torch", strategy="single", epochs=2, batch_size=16, lr=0.1)
    folder = train(config, RuntimeOptions(runs=tmp_path, log_every=2, quiet=True), list)
    records = metrics.read(folder / "metrics.jsonl")
    assert {one["kind"] for one in records} == {"train", "test", "ranks"}
    assert all(began - 1 < one["time"] < time.time() + 1 for one in records)
    steps = [one for one in records if one["kind"] == "train"]
    assert len(steps) == 4
    assert all(len(one["compute_s"]) == 1 and one["communicate_s"] == [0.0] for one in steps)
    beat = json.loads((folder / "heartbeats" / "rank-0.json").read_text())
    assert beat["communicate_s"] == 0.0 and beat["memory"] > 1_000_000 and beat["time"] > began - 1
    assert beat["rows"] <= learners[0].taken.total() == 128
