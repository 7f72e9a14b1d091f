"""Which rank is named when a job hangs."""

import sys

import pytest

from hvdtrain.training import losses
from hvdtrain.training.hang_report import PACKAGE, WAITING, Heartbeat, activity, explain


def beat(rank, step=7, doing="step", seen=100.0):
    return Heartbeat(rank, 10 + rank, f"host{rank}", step, doing, seen)


@pytest.mark.parametrize(
    ("beats", "size", "expected"),
    [
        ([beat(0), beat(1, seen=80.0)], 2, "no heartbeat of rank 1 (process 11 on host1, step 7): it is stopped"),
        ([beat(0), beat(1)], 3, "no heartbeat file of rank 2: the run's folder may not be on a shared disk"),
        ([beat(0), beat(1, doing="x.py:3 in f")], 2, "rank 1 (process 11 on host1) is at x.py:3 in f, step 7, and the"),
        ([beat(0, step=8), beat(1, step=7), beat(2, step=8)], 3, "rank 1 (process 11 on host1) is at step, step 7"),
        ([beat(0), beat(1)], 2, "no step for 40 s: all ranks are at step, step 7"),
    ],
)
def test_explanation_of_a_hang(beats, size, expected):
    assert expected in explain({one.rank: one for one in beats}, size, 40.0, now=101.0)


def test_activity_outside_the_package_is_a_place_in_the_code():
    assert "in test_activity_outside_the_package" in activity(sys._getframe())
    assert activity(None) == "ended"


def test_waiting_in_a_collective_is_a_step():
    from hvdtrain.collectives import groups

    seen = []

    class Spy:
        def all_gather_object(self, gathered, value):
            seen.append(activity(sys._getframe()))

    group = object.__new__(groups.TorchDistributedGroup)
    group.size, group._dist = 1, Spy()
    group.gather(1)
    assert seen == ["step"]


def test_reading_a_loss_is_a_step():
    seen = []

    class LazyLoss:
        def __float__(self):
            seen.append(activity(sys._getframe()))
            return 1.0

    from hvdtrain.collectives.groups import SingleProcess

    meter = losses.LossMeter(SingleProcess())
    meter.add(0, LazyLoss())
    meter.join()
    assert seen == ["step"]


@pytest.mark.parametrize("place", WAITING)
def test_places_of_waiting_exist(place):
    assert (PACKAGE / place).exists()
