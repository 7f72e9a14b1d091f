"""The step that a run has reached, from the files that its ranks write. Standard library only."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.system.files import Damaged, decoded, file_system_time, last_bytes, read_record

END_BYTES = 1 << 16
"""Of the metrics, in which the newest record is looked for."""


@dataclass(frozen=True)
class Stepped:
    """What heartbeats and records of metrics have."""

    step: int


def last_step(folder: Path | None, since: float = 0.0) -> int | None:
    """The last step that a rank has reported since then (seconds since the epoch); None where none has.

    Heartbeats are written twice a second, in which many steps may follow; the records of rank 0 may know of more.
    """
    # For names too long to be a path os.path.isdir is False, while pathlib raises.
    paths = list(folder.glob("heartbeats/rank-*.json")) if folder and os.path.isdir(folder) else []
    steps = []
    try:
        began = time_of_files(paths[0].parent, since) if paths and since else 0.0
    except OSError:
        return None
    for path in paths:
        with contextlib.suppress(OSError, Damaged):
            steps += [read_record(path, Stepped).step] if os.path.getmtime(path) >= began else []
    if paths and folder:
        with contextlib.suppress(OSError):
            steps += _recorded_steps(folder / "metrics.jsonl", began)
    return max((step for step in steps if step >= 0), default=None)


def _recorded_steps(path: Path, began: float) -> list[int]:
    """The step of the newest record of a run's metrics, if it was written since then. Raises OSError."""
    lines = last_bytes(path, END_BYTES).splitlines() if os.path.getmtime(path) >= began else []
    for line in reversed(lines):
        with contextlib.suppress(Damaged):  # a part of a line, or no record
            return [decoded(path, line, Stepped).step]
    return []


def time_of_files(folder: Path, at: float) -> float:
    """A time of this host's clock by the file system's, which may differ: files are compared with each other only.

    Raises OSError if no file can be created in the folder.
    """
    return file_system_time(folder) - (time.time() - at)
