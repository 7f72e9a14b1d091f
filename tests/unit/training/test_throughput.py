"""Images per second: of the data's rows, without those that pad a batch; and when a checkpoint is due by time."""

import dataclasses
from types import SimpleNamespace

import pytest

from hvdtrain.config.options import RuntimeOptions
from hvdtrain.interfaces import Position
from hvdtrain.training import saving, throughput
from hvdtrain.training.saving import Saver
from hvdtrain.training.throughput import Throughput


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    clock = SimpleNamespace(now=100.0)
    for module in (saving, throughput):
        both = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
        monkeypatch.setattr(module, "time", both)
    return clock


def test_rows_that_pad_a_batch_are_not_images(clock):
    """An epoch of 100 rows in two batches of 64, one second each."""
    speed, start = Throughput(), Position(global_batch=64)
    assert (speed.images_per_s, speed.seconds_per_step) == (0, 0)
    for _ in range(3):
        speed.start(start)
        clock.now += 2
        assert speed.interval(dataclasses.replace(start, step=start.step + 2, rows_in_epoch=100))["images_per_s"] == 50
        start = dataclasses.replace(start, epoch=start.epoch + 1, step=start.step + 2)
    assert (speed.images_per_s, speed.seconds_per_step) == (50, 1)
    assert speed.interval(dataclasses.replace(start, rows_in_epoch=100)) == {}


class SlowRun:
    """The parts of a `Run` that a `Saver` uses on a rank that writes nothing; its checkpoints take time."""

    is_rank_0 = state_by_rank = False
    local_weights = frozenset()

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
