"""Values and arrays that ranks send to each other: they arrive unchanged, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_arrays
from support.networks import LENET_RECORD
from support.rank_threads import on_all_ranks

from hvdtrain.collectives import arrays
from hvdtrain.collectives.arrays import broadcast_arrays, gather_arrays
from hvdtrain.collectives.encoding import ARRAYS, TEXT_BYTES, decode, encode
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces.learner import Checkpoint, OptimizerState, Position

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
KEYS = SCALARS.filter(lambda key: key == key)  # a dict has NaN as often as there are objects that are NaN
SHAPES = numpy_arrays.array_shapes(min_dims=0, min_side=0, max_side=3)
LEAVES = SCALARS | numpy_arrays.arrays(st.sampled_from(list(ARRAYS.values())), SHAPES) | st.builds(Path)
VALUES = st.recursive(
    LEAVES, lambda part: st.lists(part) | st.lists(part).map(tuple) | st.dictionaries(KEYS, part), max_leaves=8
)


def assert_equal(first: object, second: object) -> None:
    assert type(first) is type(second)
    if isinstance(first, np.ndarray | np.generic):
        assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    elif isinstance(first, float):
        assert np.array_equal(first, second, equal_nan=True)
    elif isinstance(first, dict):
        assert_equal(list(first.items()), list(second.items()))
    elif dataclasses.is_dataclass(first):
        assert_equal(vars(first), vars(second))
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for part, of_other in zip(first, second, strict=True):
            assert_equal(part, of_other)
    else:
        assert first == second


@given(VALUES)
def test_values_arrive_unchanged(value):
    assert_equal(decode(encode(value)), value)


def test_a_checkpoint_arrives_unchanged():
    weights = {"conv1/weight": np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)}
    optimizer = OptimizerState({"momentum/conv1/weight": weights["conv1/weight"].T}, 0.1, 7, {"loss_scale": 2.0**15})
    named = "lenet", LENET_RECORD, "torch", "sgd", "ab", np.float64(0.5), ("a",)
    saved = Checkpoint(Position(1, 2, 3, 4), *named, weights=weights, optimizer=optimizer)
    received = decode(encode((Path("runs/a"), saved)))
    assert_equal(received, (Path("runs/a"), saved))
    assert received[1].weights["conv1/weight"].flags.writeable


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", 1j, object(), np.array(["a"]), np.array([None])])
def test_other_values_are_not_sent(value):
    with pytest.raises(TypeError, match="ranks send no values of type"):
        encode([value])


def message(described: object, rest: bytes = b"") -> bytes:
    text = json.dumps(described).encode()
    return len(text).to_bytes(8, "little") + text + rest


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"\xff" * 8,
        message(["array", "<f4", 1 << 60]),
        message(["array", "<f4", -1], bytes(4)),
        message(["array", "|O", 1], bytes(8)),
        message(["array", "<f4", 1], bytes(5)),
        message(["path", 1]),
        message(["dict", [["list"], 1]]),
        message([]),
        (1 << 20).to_bytes(8, "little") + b"[" * (1 << 20),
        (TEXT_BYTES + 1).to_bytes(8, "little") + b" " * TEXT_BYTES + b"1",
    ],
)
def test_other_messages_are_rejected(received):
    with pytest.raises(TrainingError, match="sent what ranks never send"):
        decode(received)


def of_rank(rank):
    """Arrays of several types and sizes, including one element and none."""
    return {
        "large": np.random.default_rng(rank).normal(size=(30, 40)).astype(np.float32),
        "transposed": np.arange(rank, rank + 12).reshape(3, 4).T,
        "scalar": np.array(rank, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "flags": np.arange(5) % 2 == rank % 2,
    }


@pytest.mark.parametrize("message", [7, 1000, 1 << 20])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_gets_rank_0s_arrays(monkeypatch, size, message):
    monkeypatch.setattr(arrays, "MESSAGE_BYTES", message)
    for received in on_all_ranks(size, lambda group: broadcast_arrays(group, of_rank(0) if group.rank == 0 else None)):
        assert_equal(received, of_rank(0))


@pytest.mark.parametrize("size", [1, 3])
def test_rank_0_gets_the_arrays_of_all_ranks(monkeypatch, size):
    monkeypatch.setattr(arrays, "MESSAGE_BYTES", 1000)
    first, *others = on_all_ranks(size, lambda group: gather_arrays(group, of_rank(group.rank)))
    assert len(first) == size
    for rank, received in enumerate(first):
        assert_equal(received, of_rank(rank))
    assert others == [[]] * (size - 1)


def test_one_process_keeps_its_arrays():
    own = of_rank(0)
    assert broadcast_arrays(SingleProcess(), own) is own
    assert gather_arrays(SingleProcess(), own) == [own]
