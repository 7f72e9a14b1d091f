"""The form in which ranks of the ring send values to each other: JSON for the structure, raw bytes for arrays.

A message is the length of the JSON text (8 bytes, little-endian), the text, and the bytes of all arrays in their order.
In the text, numbers, strings, booleans and None stand for themselves; everything else is a list that begins with
its kind: ["tuple", 1, 2], ["dict", ["tuple", "key", 1]], ["path", "runs"], ["array", "<f4", 2, 3], ["Position", ...].
Reading a message creates values of these kinds only, so nothing that a sender chooses is executed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.errors import TrainingError
from hvdtrain.interfaces.learner import Checkpoint, OptimizerState, Position
from hvdtrain.system.start_folder import StartPath, from_start

MESSAGE_BYTES = 1 << 30
"""The largest message."""
TEXT_BYTES = 1 << 24
"""The longest JSON text of a message; text takes many times its size in memory once it is parsed."""
LENGTH_BYTES = 8
ARRAYS = {dtype.str: dtype for dtype in map(np.dtype, ("?", "u1", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"))}
"""Types of array elements, by their text in messages."""
RECORDS = {record.__name__: record for record in (Checkpoint, OptimizerState, Position)}
"""Dataclasses and NamedTuples that ranks send; their fields are sent in their order."""
CONTAINERS = {"list": list, "tuple": tuple, "dict": dict}
MAKERS: dict[str, Any] = {"path": Path, "start path": from_start, **RECORDS}
"""What makes a value of its parts."""


def encode(value: Any) -> bytes:
    """The message that holds a value. Raises TypeError for a value of a kind that messages do not have."""
    arrays: list[np.ndarray] = []
    text = json.dumps(_described(value, arrays)).encode()
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *(array.tobytes() for array in arrays)])


def _described(value: Any, arrays: list[np.ndarray]) -> Any:
    """The value as JSON; its arrays are appended to `arrays`."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple, dict):
        return [kind.__name__, *(_described(part, arrays) for part in (value.items() if kind is dict else value))]
    if isinstance(value, Path):
        return ["start path" if isinstance(value, StartPath) else "path", f"{value}"]
    if RECORDS.get(kind.__name__) is kind:
        return [kind.__name__, *(_described(getattr(value, name), arrays) for name in _fields(kind))]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.str in ARRAYS:
        arrays.append(np.asarray(value))
        return ["array" if isinstance(value, np.ndarray) else "scalar", value.dtype.str, *value.shape]
    raise TypeError(f"ranks send no values of type {kind.__name__}")


def _fields(record: Any) -> tuple[str, ...]:
    return getattr(record, "_fields", ()) or tuple(field.name for field in dataclasses.fields(record))


def decode(message: bytes) -> Any:
    """The value of a message. Raises TrainingError if no rank sends such a message."""
    try:
        length = int.from_bytes(message[:LENGTH_BYTES], "little")
        if not len(message) >= LENGTH_BYTES + length or length > TEXT_BYTES:
            raise ValueError(f"its text has {length} bytes")
        text = json.loads(message[LENGTH_BYTES : LENGTH_BYTES + length])
        reader = _Reader(memoryview(message)[LENGTH_BYTES + length :])
        value = reader.value(text)
        if len(reader.rest):
            raise ValueError(f"{len(reader.rest)} bytes follow it")
        return value
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise TrainingError(
            f"a rank of the ring sent what ranks never send ({error})",
            "check which other programs can connect to its ports",
        ) from None


class _Reader:
    """Makes values from the JSON of a message and the bytes of its arrays."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest
        """Bytes of the arrays that were not read yet."""

    def value(self, described: Any) -> Any:
        if not isinstance(described, list | dict):
            return described
        kind, *parts = described
        if kind in CONTAINERS:
            return CONTAINERS[kind](map(self.value, parts))
        if kind in ("array", "scalar"):
            array = self._array(*parts)
            return array if kind == "array" else array[()]
        return MAKERS[kind](*map(self.value, parts))

    def _array(self, dtype: str, *shape: int) -> np.ndarray:
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"shape {shape}")
        count = math.prod(shape)
        size = count * ARRAYS[dtype].itemsize
        if size > len(self.rest):
            raise ValueError(f"an array of {size} bytes, of which {len(self.rest)} arrived")
        array = np.frombuffer(self.rest[:size], ARRAYS[dtype], count).reshape(shape).copy()
        self.rest = self.rest[size:]
        return array
