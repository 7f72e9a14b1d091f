"""Reads TensorBoard's event files as TensorBoard does."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New


def read_events(run_folder: Path) -> dict[str, list[float]]:
    """The values of each tag that TensorBoard reads of a run."""
    (path,) = (run_folder / "tensorboard").iterdir()
    reader, values = PyRecordReader_New(str(path)), defaultdict(list)
    with contextlib.suppress(OutOfRangeError, DataLossError):  # the end, or an incomplete record
        while True:
            reader.GetNext()
            for value in Event.FromString(reader.record()).summary.value:
                values[value.tag].append(value.simple_value)
    return values
