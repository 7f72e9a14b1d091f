"""Values that ranks of the ring send to each other: they arrive unchanged, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.networks import LENET_RECORD

from hvdtrain.collectives.encoding import ARRAYS, TEXT_BYTES, decode, encode
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
KEYS = SCALARS.filter(lambda key: key == key)  # a dict has NaN as often as there are objects that are NaN
ELEMENTS = st.sampled_from(list(ARRAYS.values()))
LEAVES = SCALARS | arrays.arrays(ELEMENTS, arrays.array_shapes(min_dims=0, min_side=0, max_side=3)) | st.builds(Path)
VALUES = st.recursive(
    LEAVES,
    lambda part: st.lists(part) | st.lists(part).map(tuple) | st.dictionaries(KEYS, part),
    max_leaves=8,
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
    saved = Checkpoint(weights, optimizer, Position(1, 2, 3, 4), *named)
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
        message(["array", "<f4", 1 << 62, 1 << 62], bytes(8)),
        message(["array", "<f4", -1], bytes(4)),
        message(["array", "|O", 1], bytes(8)),
        message(["array", "<f4", True], bytes(4)),
        message(["array", "<f4", 1], bytes(5)),
        message(["Path", "/"]),
        message(["path", 1]),
        message(["Checkpoint", 1]),
        message(["dict", [["list"], 1]]),
        message([]),
        message([["list"]]),
        message({"a": 1}),
        (1 << 20).to_bytes(8, "little") + b"[" * (1 << 20),
        (TEXT_BYTES + 1).to_bytes(8, "little") + b" " * TEXT_BYTES + b"1",
    ],
)
def test_other_messages_are_rejected(received):
    with pytest.raises(TrainingError, match="sent what ranks never send"):
        decode(received)
