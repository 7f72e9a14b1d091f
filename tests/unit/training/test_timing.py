"""Where a rank's time goes and what is said of it: images per second, slow ranks, waits, due checkpoints."""

import dataclasses
import json
import re
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.fake_learner import numbered, use_fakes

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.rows import RowError
from hvdtrain.frameworks import arithmetic
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs import metrics
from hvdtrain.runs.console import Display
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system import phases as phases_module
from hvdtrain.system.phases import (
    CHECKPOINT,
    DATA,
    EVALUATION,
    FORWARD,
    GRADIENTS,
    JOINING,
    LOGGING,
    LOOP,
    RENEWING,
    START,
    phases,
)
from hvdtrain.training import batches, saver, timing
from hvdtrain.training.batches import BadRows
from hvdtrain.training.reporting import data_texts, exceeded_median
from hvdtrain.training.saver import Saver
from hvdtrain.training.timing import SlowRanks, StepTimer, Throughput, wait_share
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
    def go(phase, seconds=0.0, communicate_s=0.0):
        phases.begin(phase)
        clock.now += seconds
        group.communicate_s += communicate_s

    timer = StepTimer(group := SimpleNamespace(communicate_s=5.0))
    phases.start_run(LOOP, timer.on_step_time)
    clock.now += 50  # before the first step
    go(LOOP, 1)
    go(DATA, 0.5)
    assert timer.total == pytest.approx((1.0, 0.0, 0.5)), "it is read while it runs"
    go(GRADIENTS, 2, communicate_s=2)
    go(JOINING, 100, communicate_s=100)  # of the sum and of an evaluation
    assert timer.take() == timer.total == pytest.approx((1.0, 2.0, 0.5))
    go(FORWARD, 3)
    go(CHECKPOINT)
    assert timer.take() == pytest.approx((3.0, 0.0, 0.0)) and timer.total == pytest.approx((4.0, 2.0, 0.5))
    assert timer.take() == NO_TIME, "the next interval begins at nothing"
    timer = StepTimer(SimpleNamespace(communicate_s=None))
    phases.start_run(LOOP, timer.on_step_time)
    phases.begin(FORWARD)
    clock.now += 3
    phases.begin(LOGGING)
    assert timer.take() == StepSeconds(3.0, None, 0.0), "what cannot be told is computing"
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
    phases.start_run(LOOP, lambda begins: None)
    start = Position(global_batch=64)
    speed = Throughput(start)
    assert (speed.images_per_s, speed.seconds_per_step) == (0, 0)
    for number in range(6):
        phases.begin((START, EVALUATION, RENEWING)[number % 3])
        clock.now += 10
        phases.begin(LOOP)
        clock.now += 1
        if number % 2:
            assert speed.interval(dataclasses.replace(start, step=start.step + 2, rows_in_epoch=100)).images_per_s == 50
            start = dataclasses.replace(start, epoch=start.epoch + 1, step=start.step + 2)
    assert (speed.images_per_s, speed.seconds_per_step) == (50, 1)
    assert speed.interval(start) is None


class SlowRun:
    """The parts of a `Run` that a `Saver` uses on a rank that writes nothing; its checkpoints take time."""

    folder, group = Path(), SingleProcess()
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

    def check_same_weights(self, step, weights):
        return ""


@pytest.mark.parametrize(("seconds", "wait_s"), [(0.5, 60), (2, 200)])
def test_checkpoint_is_due_after_a_minute_or_when_it_takes_a_hundredth_of_the_time(clock, seconds, wait_s):
    saver = Saver(SlowRun(clock, seconds))
    clock.now += 59.9
    assert not saver.is_due
    clock.now += 0.2
    assert saver.is_due
    saver.save(Position())
    clock.now += wait_s - 0.1
    assert not saver.is_due
    clock.now += 0.2
    assert saver.is_due
    never = Saver(SlowRun(clock, 0, checkpoint_every="0s"))
    clock.now += 1e6
    assert not never.is_due


def times(compute, communicate=None, data=None):
    """An interval of ranks with these seconds; they wait for the slowest one unless it is told."""
    slowest = max(compute)
    communicate = communicate or [slowest - seconds for seconds in compute]
    return list(map(StepSeconds, compute, communicate, data or [0.0] * len(compute)))


class Ranks(SingleProcess):
    """A group of so many ranks, each on a host of its own."""

    def __init__(self, ranks):
        self.size = ranks

    def gather(self, value):
        return [f"node{rank}" for rank in range(self.size)]


def jitter(seed):
    """Each rank takes up to twice its time now and then."""
    random = np.random.default_rng(seed)
    return [times((0.5 * (1 + random.random(2) ** 3)).tolist()) for _ in range(2000)]


SLOW, NORMAL, IS_SLOW = times([1.0, 2.1]), times([1.0, 1.05]), "rank 1 on node1 is slow: it "
RECOVERED = "rank 1 on node1 is as fast as the other ranks again"
FEWER = "rank 1 on node1 has fewer shards, and no rank waits for it any longer"
WAITS = [times([1.0, 1.0], [1.0, 0.0], [0.2, 1.2])] * 20
NAMED = {
    "once": ([SLOW] * 20, [f"{IS_SLOW}computes 2.1 times as long as "], ["rank 1 is slow (2.1x)"]),
    "until it recovers": ([SLOW] * 9 + [NORMAL] * 9 + [SLOW] * 9, [IS_SLOW, RECOVERED, IS_SLOW], ...),
    # A logging step each 0.1 s, in which a rank stands still or not at all: they count together.
    "short": ([times([0.05, 0.15]), times([0.05, 0.05])] * 40, [f"{IS_SLOW}computes 2.0 times as long"], ...),
    "of many": ([times([1.0, 1.1, 1.9, 1.0, 0.9, 1.7])] * 20, ["rank 2 on node2 is", "rank 5 on node5 is"], ...),
    "data": (WAITS, [f"{IS_SLOW}waits for data for 45% more of the time"], ["rank 1 is slow (data 45%)"]),
    "shards": ([(SLOW, [4, 4])] * 9 + [(times([1.5, 1.0]), [6, 2])] * 9, [IS_SLOW, FEWER], []),
    "another program may start": ([SLOW] * 2, [], []),
    "too short": ([times([0.05, 0.15])] * 10, [], []),
    **{f"jitter {seed}": (jitter(seed), [], []) for seed in range(3)},
}
"""Intervals, with the shards of ranks if they matter; how messages begin; what the display shows after the last one."""


@pytest.mark.parametrize(("intervals", "expected", "shown"), NAMED.values(), ids=NAMED)
def test_slow_ranks_are_named(caplog, intervals, expected, shown):
    """Against the median, and once until they have recovered."""
    intervals = [interval if isinstance(interval, tuple) else (interval,) for interval in intervals]
    ranks = len(intervals[0][0])
    slow = SlowRanks(Ranks(ranks))
    slow.started()
    slow.add(times([100.0] + [1.0] * (ranks - 1)))  # a rank that takes long to warm up
    for interval in intervals:
        slow.add(*interval)
    messages = [record.getMessage() for record in caplog.records]
    assert [message[: len(start)] for message, start in zip(messages, expected, strict=True)] == expected
    assert shown in (slow.figures, ...) and ("waits for data" in str(messages)) == ("--workers" in str(messages))


ONCE, TWICE = [0.33, 0.04], [0.9, 0.2]
EVALUATIONS = {
    "lost its core once": ([ONCE, [0.04, 0.04]] * 4, 0),
    "lost it twice": ([ONCE, TWICE, [0.04, 0.04]], 0),
    "stays slow": ([TWICE] * 5, 1),
    "again, after it had recovered": (([TWICE] * 3 + [[0.2, 0.2]]) * 2, 2),
    "slow by seconds": ([[9.0, 3.0]] * 5, 1),
    "each in turn": ([ONCE, ONCE[::-1]] * 4, 0),
}
"""What two ranks took for their shares, and how often one is named."""


@pytest.mark.parametrize(("evaluations", "named"), EVALUATIONS.values(), ids=EVALUATIONS)
def test_a_rank_that_stays_slow_in_evaluations_is_named(caplog, evaluations, named):
    slow = SlowRanks(Ranks(2))
    slow.started()
    for seconds in evaluations:
        slow.add_evaluation(seconds, [1, 1])
    assert caplog.text.count("rank 0 on node0 is slow") == len(caplog.records) == named


def test_only_what_matters_is_shown() -> None:
    none = {"train": 0, "validation": 0, "test": 0}
    assert data_texts({0: 0.01, 1: 0.04}, 2, none) == []
    waited = "rank 3 waited for data 34% of the time (raise --workers, now 2)"
    assert data_texts({0: 0.1, 3: 0.34}, 2, none) == [waited]
    assert "--workers" not in data_texts({0: 0.1, 1: 0.34}, None, none)[0]
    skipped = data_texts({0: 0.0}, 0, {**none, "train": 2})
    assert skipped == ["skipped 2 bad train row(s) and 0 of test (see logs)"]


def test_wait_is_a_share_of_the_time_in_steps() -> None:
    phases.start_run(LOOP, lambda begins: None)
    throughput = Throughput(Position(step=0))
    assert wait_share(throughput.intervals) == 0
    for step in (1, 2):
        phases.begin(DATA)
        time.sleep(0.01)
        phases.begin(FORWARD)
        at = Position(step=step, rows_in_epoch=step)
        interval = throughput.interval(at)
        assert 0.01 <= interval.waited_s <= interval.outside_s
    assert 0 < wait_share(throughput.intervals) <= 1


def test_a_bad_row_is_named_once_and_counted_once(monkeypatch) -> None:
    logged = []
    monkeypatch.setattr(batches, "log_to_file", lambda level, text: logged.append(text))
    rows = BadRows()
    for part in ("train", "train", "test"):
        rows.add(part, [5, 8, 3], {2: RowError("3.png (row 3): cannot be read", "correct it")})
    assert logged == [f"skipped a row of {part}: 3.png (row 3): cannot be read" for part in ("train", "test")]
    assert rows.count(SingleProcess()) == {"train": 1, "validation": 0, "test": 1}


def test_accuracy_is_shown_when_there_is_one(tmp_path, monkeypatch, capfd):
    use_fakes(monkeypatch, numbered(64))
    monkeypatch.setattr(Display, "PLAIN_EVERY_S", 0.0)
    options = {"schedule": "constant", "warmup_epochs": 0, "lr": 0.125}
    config = Config(framework="torch", strategy="single", epochs=2, batch_size=16, **options)
    train(config, RuntimeOptions(runs=tmp_path, log_every=2), list)
    lines = [line for line in capfd.readouterr().err.splitlines() if " s left" in line]
    assert [re.sub(r"[\d,]+ (images/s|s left)", r"N \1", line) for line in lines] == [
        f"epoch {epoch}/2  step {step}/8  N images/s  train loss 1.0000{accuracy}  lr 0.125  N s left"
        for epoch, step, accuracy in [(1, 2, ""), (1, 4, ""), (2, 6, "  accuracy 1.0000"), (2, 8, "  accuracy 1.0000")]
    ]


@pytest.mark.parametrize(("bf16_s", "warnings"), [(2e-3, 1), (0.5e-3, 0)])
def test_a_precision_that_is_slower_here_is_said_once(bf16_s, warnings, tmp_path, monkeypatch):
    use_fakes(monkeypatch, numbered(64))
    monkeypatch.setattr(arithmetic, "product_s", lambda _, precision: bf16_s if precision == "bf16" else 1e-3)
    config = Config(framework="torch", strategy="single", precision="bf16", epochs=2, batch_size=16)
    folder = train(config, RuntimeOptions(runs=tmp_path, log_every=2, quiet=True), list)
    lines = (folder / "logs" / "rank-0.log").read_text().splitlines()
    assert sum("WARNING --precision bf16" in line for line in lines) == warnings


def test_spike_is_far_above_the_recent_median():
    recent = deque()
    assert [exceeded_median(recent, loss) for loss in (1.0, 9.0, 1.0, 1.0, 1.0)] == [None] * 5, "too few to compare"
    assert exceeded_median(recent, 2.9) is None
    assert exceeded_median(recent, 3.1) == 1.0
