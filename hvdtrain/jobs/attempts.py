"""The attempts of a job that is restarted: how far each got, and their record in the run's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.jobs.program import RUNS, option_value
from hvdtrain.system.checkpoint_folder import Entry, newest_whole
from hvdtrain.system.files import file_system_time, read_json, write_atomically
from hvdtrain.system.run_end import FILE as END
from hvdtrain.system.run_end import RunEnd

FILE = "attempts.json"
LOCKS = "lock-*.json"
"""The lock files of a run's folder, each of which names the job that wrote it."""


@dataclass
class Attempt:
    """One start of the job."""

    checkpoint: Entry | None
    """The newest checkpoint when it began; None where there was none."""
    ranks: int = 0
    hosts: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    seconds: float = 0.0
    step: int | None = None
    """The last step that a rank is known to have completed; None where none is known."""
    status: int = 0
    """Exit status."""
    ended: str = ""
    """How it ended, in one line."""
    signature: str = ""
    """That of its failure: equal where two attempts failed in the same way."""

    @property
    def trained(self) -> bool:
        """Whether there were steps before its end."""
        return self.step is not None or self.checkpoint is not None

    def line(self) -> str:
        where = f" on {', '.join(self.hosts)}" if self.hosts else ""
        start = f"from the checkpoint of step {self.checkpoint.step}" if self.checkpoint else "from the beginning"
        end = "" if self.step is None else f" to step {self.step}"
        return f"{self.ranks} ranks{where}, {start}{end}, {self.seconds:.0f} s: {self.ended}"

    def record(self) -> dict[str, Any]:
        """Its form in attempts.json, where -1 says that there is no such step."""
        found = dataclasses.asdict(self)
        found["checkpoint"] = self.checkpoint.step if self.checkpoint else -1
        found["step"] = -1 if self.step is None else self.step
        del found["signature"]  # `ended` says the same
        return found


def write(attempts: list[Attempt], folder: Path | None) -> None:
    """Write attempts.json, if the run has a folder."""
    if folder and os.path.isdir(folder):
        text = json.dumps([attempt.record() for attempt in attempts], indent=1)
        with contextlib.suppress(OSError):  # a full disk does not keep a job from being restarted
            write_atomically(folder / FILE, text + "\n")


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


def folder_of_job(program: Sequence[str], job: str) -> Path | None:
    """The folder of the run that the program of this job has opened last; None where it cannot be found here.

    job: the job's HVDTRAIN_JOB, which rank 0 writes into the lock of its run's folder.
    """
    if not job:  # as runs have that no launcher of ours started
        return None
    resumed = option_value(program, "--resume")
    folders = [Path(option_value(program, "--runs") or RUNS)]
    if resumed:  # a run's folder, or a checkpoint in it: its parent's parent
        folders += [Path(resumed), Path(resumed).absolute().parent.parent]
    locks = [path for folder in folders for pattern in (LOCKS, f"*/{LOCKS}") for path in _files(folder, pattern)]
    with contextlib.suppress(OSError):
        for path in sorted(locks, key=os.path.getmtime, reverse=True):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                if read_json(path)["job"] == job:
                    return path.parent
    return None
