"""Cores that a job computes with."""

from types import SimpleNamespace

import pytest

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.training import result
from hvdtrain.training.result import RankCores, count_cores, total_cores

FOUR, ALONE = frozenset(range(4)), SingleProcess()


@pytest.mark.parametrize(
    ("ranks", "total"),
    [
        ([("a", 1, FOUR), ("a", 1, FOUR)], 2),
        ([("a", 4, FOUR), ("a", 4, FOUR)], 4),  # both ranks use all cores
        ([("a", 2, frozenset({0, 1})), ("a", 2, frozenset({2, 3}))], 4),  # bound to cores of their own
        ([("a", 2, FOUR), ("b", 8, FOUR)], 6),  # two hosts
    ],
)
def test_a_core_counts_once(ranks, total):
    assert total_cores([RankCores(*rank) for rank in ranks]) == total


def test_threads_of_devices_are_cores_and_gpus_have_none(monkeypatch):
    def cores(device, devices=1):
        return count_cores(SimpleNamespace(learner=SimpleNamespace(device=device, devices=devices), group=ALONE))

    monkeypatch.setattr(result.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (cores("cuda:0"), cores("cpu", devices=2)) == (None, 6)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert cores("cpu", devices=2) == 8
