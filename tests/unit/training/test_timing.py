"""Where a rank's time goes, images per second, slow ranks, and when a checkpoint is due by time."""

import dataclasses
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support.fake_learner import numbered, use_fakes

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.interfaces import Position
from hvdtrain.runs import metrics
from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.system import phases as phases_module
from hvdtrain.system.phases import CHECKPOINT, DATA, FORWARD, GRADIENTS, JOINING, LOGGING, LOOP, phases
from hvdtrain.training import saver, timing
from hvdtrain.training.saver import Saver
from hvdtrain.training.timing import SlowRanks, StepTimer, Throughput
from hvdtrain.training.train import train


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    clock = SimpleNamespace(now=100.0)
    shown = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now, monotonic_ns=lambda: 0)
    for module in (phases_module, saver, timing):
        monkeypatch.setattr(module, "time", shown)
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
    assert {one["kind"] for one in records} == {"train", "test", "ranks", "checkpoint"}
    assert all(began - 1 < one["time"] < time.time() + 1 for one in records)
    steps = [one for one in records if one["kind"] == "train"]
    assert len(steps) == 4
    assert all(len(one["compute_s"]) == 1 and one["communicate_s"] == [0.0] for one in steps)
    beat = json.loads((folder / "heartbeats" / "rank-0.json").read_text())
    assert beat["communicate_s"] == 0.0 and beat["memory"] > 1_000_000 and beat["time"] > began - 1
    assert beat["rows"] <= learners[0].taken.total() == 128


def test_rows_that_pad_a_batch_are_not_images(clock):
    """An epoch of 100 rows in two batches of 64, one second each."""
    speed, start = Throughput(), Position(global_batch=64)
    assert (speed.images_per_s, speed.seconds_per_step) == (0, 0)
    for _ in range(3):
        speed.epoch_started(start)
        clock.now += 2
        assert speed.interval(dataclasses.replace(start, step=start.step + 2, rows_in_epoch=100))["images_per_s"] == 50
        start = dataclasses.replace(start, epoch=start.epoch + 1, step=start.step + 2)
    assert (speed.images_per_s, speed.seconds_per_step) == (50, 1)
    assert speed.interval(dataclasses.replace(start, rows_in_epoch=100)) == {}


class SlowRun:
    """The parts of a `Run` that a `Saver` uses on a rank that writes nothing; its checkpoints take time."""

    is_rank_0 = state_by_rank = False
    local_arrays = staticmethod(dict)
    untrained = frozenset()
    not_finite_at_first = {}  # noqa: RUF012

    def __init__(self, clock, seconds, **options):
        self.runtime, self.learner = RuntimeOptions(**options), self
        self._clock, self._seconds = clock, seconds

    def weights(self):
        self._clock.now += self._seconds
        return {}


@pytest.mark.parametrize(("seconds", "wait_s"), [(0.5, 60), (2, 200)])
def test_checkpoint_is_due_after_a_minute_or_when_it_takes_a_hundredth_of_the_time(clock, seconds, wait_s):
    saver = Saver(SlowRun(clock, seconds), None)
    clock.now += 59.9
    assert not saver.is_due
    clock.now += 0.2
    assert saver.is_due
    saver.save(Position())
    clock.now += wait_s - 0.1
    assert not saver.is_due
    clock.now += 0.2
    assert saver.is_due


def test_no_checkpoint_is_due_by_time_if_there_are_none(clock):
    saver = Saver(SlowRun(clock, 0, checkpoint_seconds=0), None)
    clock.now += 1e6
    assert not saver.is_due


def times(compute, communicate=None, data=None):
    """An interval of ranks with these seconds; they wait for the slowest one unless it is told."""
    slowest = max(compute)
    communicate = communicate or [slowest - seconds for seconds in compute]
    return list(map(StepTime, compute, communicate, data or [0.0] * len(compute)))


class Ranks(SingleProcess):
    """A group of so many ranks, each on a host of its own."""

    def __init__(self, ranks):
        self.size = ranks

    def gather(self, value):
        return [f"node{rank}" for rank in range(self.size)]


def logged(caplog, intervals, ranks=2):
    """What is logged over these intervals, and what the display shows after the last one."""
    caplog.clear()
    slow = SlowRanks(Ranks(ranks))
    slow.started()
    slow.add(times([100.0] + [1.0] * (ranks - 1)))  # a rank that takes long to warm up
    for interval in intervals:
        slow.add(interval)
    return [record.getMessage() for record in caplog.records], slow.figures


def test_a_slow_rank_is_named_once_until_it_has_recovered(caplog):
    slow, normal = times([1.0, 2.1]), times([1.0, 1.05])
    assert logged(caplog, [slow] * 2) == ([], []), "it may be another program that starts"
    messages, figures = logged(caplog, [slow] * 20)
    assert len(messages) == 1 and messages[0].startswith("rank 1 on node1 is slow: it computes 2.1 times as long as ")
    assert figures == ["rank 1 is slow (2.1x)"]
    messages, figures = logged(caplog, [*[slow] * 9, *[normal] * 9, *[slow] * 9])
    assert messages[1] == "rank 1 on node1 is as fast as the other ranks again" and messages[2] == messages[0]
    assert len(messages) == 3 and figures


def test_short_intervals_count_together(caplog):
    """A logging step each 0.1 s, in which a rank stands still or not at all."""
    stopped, running = times([0.05, 0.15]), times([0.05, 0.05])
    messages, _ = logged(caplog, [stopped, running] * 40)
    assert len(messages) == 1 and "rank 1 on node1 is slow: it computes 2.0 times as long" in messages[0]
    assert logged(caplog, [stopped] * 10)[0] == []


def test_of_many_ranks_each_is_compared_with_the_median(caplog):
    messages, _ = logged(caplog, [times([1.0, 1.1, 1.9, 1.0, 0.9, 1.7])] * 20, ranks=6)
    assert [message.partition(" is ")[0] for message in messages] == ["rank 2 on node2", "rank 5 on node5"]


def test_a_rank_that_waits_for_its_rows_is_named(caplog):
    messages, figures = logged(caplog, [times([1.0, 1.0], [1.0, 0.0], [0.2, 1.2])] * 20)
    assert len(messages) == 1 and "rank 1 on node1 is slow: it waits for data for 45% more of the time" in messages[0]
    assert "--workers" in messages[0] and figures == ["rank 1 is slow (data 45%)"]
    assert logged(caplog, [times([1.0, 1.0], [0.0, 0.0], [9.0, 9.0])] * 20) == ([], []), "the disk is slow for all"


@pytest.mark.parametrize("seed", range(3))
def test_jitter_names_nobody(caplog, seed):
    """Each rank takes up to twice its time now and then."""
    random = np.random.default_rng(seed)
    intervals = [times((0.5 * (1 + random.random(2) ** 3)).tolist()) for _ in range(2000)]
    assert logged(caplog, intervals) == ([], [])


def test_what_contains_waiting_names_nobody(caplog):
    assert logged(caplog, [times([1.0, 2.1], [None, None])] * 20) == ([], [])
    assert logged(caplog, [[StepTime(2.0, 0.0, 0.0)]] * 20, ranks=1) == ([], [])


def test_a_rank_with_fewer_shards_is_not_said_to_be_as_fast_again(caplog):
    slow = SlowRanks(Ranks(2))
    slow.started()
    for work, interval in [([4, 4], times([1.0, 2.0]))] * 9 + [([6, 2], times([1.5, 1.0]))] * 9:
        slow.add(interval, work)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[1:] == ["no rank waits for rank 1 on node1 any longer: it has fewer shards"] and not slow.figures
