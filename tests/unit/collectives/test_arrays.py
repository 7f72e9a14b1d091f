"""Arrays from one rank to the others, in messages much smaller than the arrays."""

import threading

import numpy as np
import pytest

from hvdtrain.collectives import arrays
from hvdtrain.collectives.arrays import broadcast_arrays, gather_arrays
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.collectives.ring import RingGroup
from hvdtrain.system.network import free_port
from hvdtrain.system.rank_info import RankInfo


def of_rank(rank):
    """Arrays of several types and sizes, including one element and none."""
    return {
        "large": np.random.default_rng(rank).normal(size=(30, 40)).astype(np.float32),
        "transposed": np.arange(rank, rank + 12).reshape(3, 4).T,
        "scalar": np.array(rank, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "flags": np.arange(5) % 2 == rank % 2,
    }


def on_every_rank(size, job):
    """What `job(group)` returns on each of `size` ranks of a ring, in threads."""
    address, results = ("127.0.0.1", free_port()), [None] * size

    def run(rank):
        group = RingGroup(RankInfo("test", rank, size, rank), address, "secret", 20)
        results[rank] = job(group)
        group.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def assert_same(received, expected):
    assert list(received) == list(expected)
    for name, array in received.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        assert np.array_equal(array, expected[name]), name


@pytest.mark.parametrize("message", [7, 1000, 1 << 20])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_gets_rank_0s_arrays(monkeypatch, size, message):
    monkeypatch.setattr(arrays, "MESSAGE_BYTES", message)
    for received in on_every_rank(size, lambda group: broadcast_arrays(group, of_rank(0) if group.rank == 0 else None)):
        assert_same(received, of_rank(0))


@pytest.mark.parametrize("size", [1, 3])
def test_rank_0_gets_the_arrays_of_all_ranks(monkeypatch, size):
    monkeypatch.setattr(arrays, "MESSAGE_BYTES", 1000)
    first, *others = on_every_rank(size, lambda group: gather_arrays(group, of_rank(group.rank)))
    assert len(first) == size
    for rank, received in enumerate(first):
        assert_same(received, of_rank(rank))
    assert others == [[]] * (size - 1)


def test_one_process_keeps_its_arrays():
    arrays_of_rank_0 = of_rank(0)
    assert broadcast_arrays(SingleProcess(), arrays_of_rank_0) is arrays_of_rank_0
    assert gather_arrays(SingleProcess(), arrays_of_rank_0) == [arrays_of_rank_0]
