"""Arrays from one rank to the others, in messages much smaller than the arrays."""

import numpy as np
import pytest
from support.rank_threads import on_all_ranks

from hvdtrain.collectives import arrays
from hvdtrain.collectives.arrays import broadcast_arrays, gather_arrays
from hvdtrain.collectives.groups import SingleProcess


def of_rank(rank):
    """Arrays of several types and sizes, including one element and none."""
    return {
        "large": np.random.default_rng(rank).normal(size=(30, 40)).astype(np.float32),
        "transposed": np.arange(rank, rank + 12).reshape(3, 4).T,
        "scalar": np.array(rank, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "flags": np.arange(5) % 2 == rank % 2,
    }


def assert_same(received, expected):
    assert list(received) == list(expected)
    for name, array in received.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        assert np.array_equal(array, expected[name]), name


@pytest.mark.parametrize("message", [7, 1000, 1 << 20])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_gets_rank_0s_arrays(monkeypatch, size, message):
    monkeypatch.setattr(arrays, "MESSAGE_BYTES", message)
    for received in on_all_ranks(size, lambda group: broadcast_arrays(group, of_rank(0) if group.rank == 0 else None)):
        assert_same(received, of_rank(0))


@pytest.mark.parametrize("size", [1, 3])
def test_rank_0_gets_the_arrays_of_all_ranks(monkeypatch, size):
    monkeypatch.setattr(arrays, "MESSAGE_BYTES", 1000)
    first, *others = on_all_ranks(size, lambda group: gather_arrays(group, of_rank(group.rank)))
    assert len(first) == size
    for rank, received in enumerate(first):
        assert_same(received, of_rank(rank))
    assert others == [[]] * (size - 1)


def test_one_process_keeps_its_arrays():
    own = of_rank(0)
    assert broadcast_arrays(SingleProcess(), own) is own
    assert gather_arrays(SingleProcess(), own) == [own]
