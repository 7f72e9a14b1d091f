"""How far the run of a job has come, and how it ended, by what is in its folder."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from hvdtrain.system.checkpoint_folder import Entry, newest_whole
from hvdtrain.system.files import file_system_time, read_json
from hvdtrain.system.run_end import FILE as END
from hvdtrain.system.run_end import RunEnd


def newest_checkpoint(folder: Path | None) -> Entry | None:
    """The checkpoint from which the run in a folder resumes; None where there is none."""
    return newest_whole(folder / "checkpoints") if folder else None


def last_step(folder: Path | None, since: float = 0.0) -> int | None:
    """The last step that a rank has reported since then (seconds since the epoch); None where none has."""
    steps, paths = [], _files(folder, "heartbeats/rank-*.json")
    try:
        began = _time_of_files(paths[0].parent, since) if paths and since else 0.0
    except OSError:
        return None
    for path in paths:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            steps += [int(read_json(path)["step"])] if os.path.getmtime(path) >= began else []
    return max((step for step in steps if step >= 0), default=None)


def recorded_hang(folder: Path, since: float) -> RunEnd | None:
    """The end by a hang that ranks have recorded since then (seconds since the epoch); None where they have not."""
    end = RunEnd.read(folder)
    try:
        is_new = os.path.getmtime(folder / END) >= _time_of_files(folder, since)
    except OSError:
        return None
    return end if end and end.status == "hung" and is_new else None


def _time_of_files(folder: Path, at: float) -> float:
    """A time of this host's clock by the file system's, which may differ: files are compared with each other only.

    Raises OSError if no file can be created in the folder.
    """
    return file_system_time(folder) - (time.time() - at)


def progress(folder: Path | None, since: float) -> str:
    """How far a job that has failed came, and how to resume it; empty where that is unknown.

    since: when it began, in seconds since the epoch.
    """
    checkpoint, step = newest_checkpoint(folder), last_step(folder, since)
    reached = "" if step is None else f"the last step known is {step}"
    if not checkpoint:
        return f"{reached}, and no checkpoint was written yet" if reached else ""
    saved = f"the newest checkpoint is of step {checkpoint.step}; resume with --resume {folder}"
    # A heartbeat may be older than a checkpoint of the same moment.
    return f"{reached}, {saved}" if step is not None and step > checkpoint.step else saved


def _files(folder: Path | None, pattern: str) -> list[Path]:
    """Files of a run's folder; none where there is no such folder, or its name is not valid."""
    return list(folder.glob(pattern)) if folder and os.path.isdir(folder) else []
