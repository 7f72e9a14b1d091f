"""Where a rank's time goes: the parts of an interval are its time, whatever is between intervals."""

import json
import time
from types import SimpleNamespace

import pytest
from support.fake_learner import numbered, use_fakes

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.runs import metrics
from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.system import phases as phases_module
from hvdtrain.system.phases import CHECKPOINT, DATA, FORWARD, GRADIENTS, JOINING, LOGGING, LOOP, phases
from hvdtrain.training import step_timer
from hvdtrain.training.step_timer import StepTimer
from hvdtrain.training.train import train


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    clock = SimpleNamespace(now=100.0)
    for module in (phases_module, step_timer):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now, monotonic_ns=lambda: 0))
    return clock


def test_parts_of_an_interval_are_its_time(clock):
    group = SimpleNamespace(communicate_s=5.0)
    timer = StepTimer(group)
    phases.start_run(LOOP, timer.on_step_time)
    clock.now += 50  # before the first step
    phases.begin(LOOP)
    clock.now += 1
    phases.begin(DATA)
    clock.now += 0.5
    assert timer.total == pytest.approx((1.0, 0.0, 0.5)), "it is read while it runs"
    phases.begin(GRADIENTS)
    group.communicate_s += 2
    clock.now += 2
    phases.begin(JOINING)
    group.communicate_s += 100  # of the sum and of an evaluation
    clock.now += 100
    assert timer.take() == pytest.approx((1.0, 2.0, 0.5))
    assert timer.total == pytest.approx((1.0, 2.0, 0.5))
    phases.begin(FORWARD)
    clock.now += 3
    phases.begin(CHECKPOINT)
    assert timer.take() == pytest.approx((3.0, 0.0, 0.0)) and timer.total == pytest.approx((4.0, 2.0, 0.5))


def test_work_between_steps_belongs_to_none(clock):
    group = SimpleNamespace(communicate_s=0.0)
    timer = StepTimer(group)
    phases.start_run(LOOP, timer.on_step_time)
    for seconds, phase in ((1, FORWARD), (10, JOINING), (2, FORWARD)):
        phases.begin(phase)
        clock.now += seconds
        group.communicate_s += 4 if phase is JOINING else 0
    phases.begin(LOGGING)
    assert timer.take() == timer.total == pytest.approx((3.0, 0.0, 0.0))
    assert timer.take() == NO_TIME, "the next interval begins at nothing"


def test_what_cannot_be_told_is_computing(clock):
    timer = StepTimer(SimpleNamespace(communicate_s=None))
    phases.start_run(LOOP, timer.on_step_time)
    phases.begin(FORWARD)
    clock.now += 3
    phases.begin(LOGGING)
    assert timer.take() == StepTime(3.0, None, 0.0)
    assert timer.total.communicate is None


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
