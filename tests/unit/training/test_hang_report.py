"""Which rank is named when a job hangs."""

import contextlib
import itertools
import sys

import pytest
from support.untrusted import save_checkpoint

from hvdtrain.collectives.single_process import SingleProcess
from hvdtrain.collectives.torch_distributed import TorchDistributedGroup
from hvdtrain.runs import checkpoints, shards
from hvdtrain.system import checkpoint_folder, files
from hvdtrain.training import losses
from hvdtrain.training.hang_report import (
    PACKAGE,
    WAITING,
    WRITING,
    Heartbeat,
    Observation,
    activity,
    explain,
    writing_at,
)


def beat(rank, step=7, doing="step", idle_s=40.0):
    return Heartbeat(rank, 10 + rank, f"host{rank}", step, doing, idle_s, number=3)


def observed(*beats, silent=()):
    return Observation({one.rank: one for one in beats}, frozenset(silent))


@pytest.mark.parametrize(
    ("seen", "size", "expected"),
    [
        (
            observed(beat(0), beat(1), silent=[1]),
            2,
            "no heartbeat of rank 1 (process 11 on host1, step 7): it is",
        ),
        (observed(beat(0), beat(1)), 3, "no heartbeat file of rank 2: the run's folder may not be on a shared disk"),
        (observed(beat(0), beat(1, doing="x.py:3 in f")), 2, "rank 1 (process 11 on host1) is at x.py:3 in f, step 7"),
        (observed(beat(0, step=8), beat(1, step=7), beat(2, step=8)), 3, "rank 1 (process 11 on host1) is at step"),
        (observed(beat(0), beat(1)), 2, "no step for 40 s: all ranks are at step, step 7"),
    ],
)
def test_explanation_of_a_hang(seen, size, expected):
    assert expected in explain(seen, size, 40.0)


@pytest.mark.parametrize(
    ("seen", "works"),
    [
        (observed(beat(0), beat(1)), False),
        (observed(beat(0), beat(1, idle_s=2.0)), True),
        (observed(beat(0), beat(1, idle_s=2.0), silent=[1]), False),
    ],
)
def test_rank_that_makes_progress_works(seen, works):
    """As rank 0 does in a slow folder, while the others wait for it."""
    assert seen.works(within_s=15.0) == works


def test_activity_outside_the_package_is_a_place_in_the_code():
    assert "in test_activity_outside_the_package" in activity(sys._getframe())
    assert activity(None) == "ended"


def test_waiting_in_a_collective_is_a_step():
    seen = []

    class Spy:
        def all_gather_object(self, gathered, value):
            seen.append(activity(sys._getframe()))

    group = object.__new__(TorchDistributedGroup)
    group.size, group._dist = 1, Spy()
    group.gather(1)
    assert seen == ["step"]


def test_reading_a_loss_is_a_step():
    seen = []

    class LazyLoss:
        def __float__(self):
            seen.append(activity(sys._getframe()))
            return 1.0

    meter = losses.LossMeter(SingleProcess())
    meter.add(0, LazyLoss())
    meter.join()
    assert seen == ["step"]


@pytest.mark.parametrize("use", [checkpoint_folder.entries, files.read_limited])
def test_reading_a_record_or_a_checkpoint_uses_the_folder(use):
    """So a slow folder is not a hang there, either."""
    seen = []

    class SlowPath:
        def stat(self):
            seen.append(writing_at(sys._getframe()))
            raise OSError

        __fspath__ = stat

    with contextlib.suppress(OSError):
        use(SlowPath())
    assert seen and all(seen)
    assert not writing_at(sys._getframe())


def test_each_file_of_a_checkpoint_is_another_operation(tmp_path, monkeypatch):
    """Although it is written, and read back, at the same place in the code: each may be slow."""
    seen = []

    def slow_open(*arguments, **options):
        seen.append(writing_at(sys._getframe()))
        return open(*arguments, **options)

    for module in (checkpoints, shards):
        monkeypatch.setattr(module, "open", slow_open, raising=False)
    monkeypatch.setattr(files, "open", slow_open, raising=False)
    for _ in range(3):
        save_checkpoint(tmp_path / "checkpoints", keep=1)
    assert all(seen)
    assert not [before for before, after in itertools.pairwise(seen) if before == after]


@pytest.mark.parametrize("place", WAITING + WRITING)
def test_places_exist(place):
    assert (PACKAGE / place).exists()
