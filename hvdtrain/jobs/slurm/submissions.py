"""The jobs that this user has submitted with `launch sbatch --submit`: one JSON object in each line of a file.

The file is $XDG_STATE_HOME/hvdtrain/submitted.jsonl, by default below ~/.local/state. Several commands may add lines at
the same time, also from several hosts; lines that are damaged are left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info
from hvdtrain.system.files import open_regular

MAX_BYTES = 1 << 24
"""Older lines at the beginning of a larger file are not read."""
NAME = "submitted.jsonl"
JOB_ID = re.compile(r"[0-9]{1,10}")
SUBMITTED = re.compile(r"([0-9]{1,10})(?:;(\S+))?\s*")
"""What sbatch --parsable prints: the job's id, and the cluster if that was chosen."""


MAX_INDEX = 4_000_000
"""Slurm's limit of MaxArraySize."""


class ArrayTasks(NamedTuple):
    """The tasks of an array: `0-9%2`."""

    text: str
    """As sbatch takes it."""
    indexes: tuple[tuple[int, int, int], ...]
    """First, last and step of each range."""

    @property
    def last(self) -> int:
        """The highest index."""
        return max(last for _, last, _ in self.indexes)

    def has(self, index: int) -> bool:
        """Whether there is a task of this number."""
        return any(first <= index <= last and (index - first) % step == 0 for first, last, step in self.indexes)


def array_tasks(text: str) -> ArrayTasks:
    """The tasks of --array. Raises UserError for what sbatch would not accept."""
    where, remedy = f"--array {text!r:.100}", "write 0-9, 0-9%2 for two at a time, 0-8:2, or 1,3,5"
    ranges, percent, limit = text.partition("%")
    parts = [re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?", part) for part in ranges.split(",")]
    if not all(parts) or (percent and not re.fullmatch(r"[1-9][0-9]{0,6}", limit)):
        raise UserError(f"{where} is not a list of tasks", remedy)
    indexes = tuple((int(part[1]), int(part[2] or part[1]), int(part[3] or 1)) for part in parts if part)
    if any(first > last or step < 1 or last > MAX_INDEX for first, last, step in indexes):
        raise UserError(f"{where} has a range without tasks, or an index above {MAX_INDEX}", remedy)
    return ArrayTasks(text, indexes)


@dataclass(frozen=True)
class Submission:
    """One job as it was submitted."""

    job: str
    """Slurm's number; of an array, that of all its tasks."""
    name: str
    folder: str
    """Where it was submitted, and where its program runs."""
    command: list[str] = field(default_factory=list)
    """The program and its options."""
    cluster: str = ""
    """Slurm's cluster, if another than the host's own was chosen."""
    array: str = ""
    """The tasks of an array, as sbatch takes them; empty for a single job."""
    sweep: str = ""
    """The folder of the sweep whose trials the job trains; empty for another program."""
    submitted: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    runs: dict[str, str] = field(default_factory=dict)
    """The folders of the runs that its tasks have opened, by the tasks' numbers; of a single job by an empty text."""

    def run_folder(self, task: str = "") -> Path | None:
        """The folder of the run of the job, or of a task of the array; None until the job has opened one."""
        return Path(self.runs[task]) if task in self.runs else None

    def has_task(self, task: str) -> bool:
        """Whether it is an array with a task of this number."""
        try:
            return bool(self.array) and array_tasks(self.array).has(int(task))
        except UserError:  # the line was not written by the launcher
            return False

    @property
    def sweep_folder(self) -> Path | None:
        """The folder of the sweep whose trials the job trains; None for another program."""
        return Path(self.folder, self.sweep) if self.sweep else None

    @classmethod
    def from_json(cls, line: bytes) -> Submission | None:
        """None for a line that was not written completely."""
        try:
            values: dict[str, Any] = json.loads(line)
            submission = cls(**{name: value for name, value in values.items() if name in FIELDS})
            texts = [getattr(submission, name) for name in ("job", "name", "folder", "cluster", "array", "sweep")]
            valid = all(isinstance(text, str) and "\0" not in text for text in (*texts, *submission.command))
            valid = valid and isinstance(submission.command, list)
            when = float(submission.submitted)
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
            return None
        return submission if valid and JOB_ID.fullmatch(submission.job) and 0 <= when < 1e12 else None


FIELDS = frozenset(Submission.__dataclass_fields__) - {"runs"}
"""What a line about a submission holds."""


class OpenedRun(NamedTuple):
    """The run that a job, or a task of an array, trains: a line that its launcher adds when rank 0 has said it."""

    job: str
    task: str
    run: str
    """The folder's absolute path."""

    @classmethod
    def from_json(cls, line: bytes) -> OpenedRun | None:
        """None for a line of another kind."""
        try:
            values = json.loads(line)
            opened = cls(values["job"], values["task"], values["run"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return opened if all(isinstance(text, str) and "\0" not in text for text in opened) else None


def path() -> Path:
    """The file for this user."""
    given = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"  # relative ones are invalid
    return folder / "hvdtrain" / NAME


def add(submission: Submission) -> None:
    """Add a line. Raises OSError, or RuntimeError for a user without a home folder."""
    _add({name: value for name, value in asdict(submission).items() if name in FIELDS})


def add_run(run: str, environment: Mapping[str, str] = os.environ) -> None:
    """Add a line about the run that this job has opened, if a batch script of ours has started it.

    Does nothing where the file cannot be written: then launch status does not show the run.
    """
    job = environment.get("SLURM_ARRAY_JOB_ID") or environment.get("SLURM_JOB_ID", "")
    if job and environment.get(rank_info.RUN_NAME):
        with contextlib.suppress(OSError, RuntimeError):
            _add(OpenedRun(job, environment.get("SLURM_ARRAY_TASK_ID", ""), run)._asdict())


def _add(values: dict[str, Any]) -> None:
    file = path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = (json.dumps(values) + "\n").encode()
    # Only for this user: commands may hold anything.
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with contextlib.suppress(OSError):  # some shared folders have no locks
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # somebody's line was cut off
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read() -> tuple[list[Submission], int]:
    """All submissions, oldest first, and how many lines are damaged. Raises OSError for a file that cannot be read."""
    try:
        with open_regular(path()) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - MAX_BYTES, 0))
            lines = file.read(MAX_BYTES).split(b"\n")
    except (FileNotFoundError, RuntimeError):
        return [], 0
    lines = [line for line in (lines[1:] if size > MAX_BYTES else lines) if line.strip()]
    newest: dict[tuple[str, str], Submission] = {}
    damaged = 0
    for line in lines:
        if opened := OpenedRun.from_json(line):
            for submission in newest.values():
                if submission.job == opened.job:
                    submission.runs[opened.task] = opened.run
        elif submitted := Submission.from_json(line):
            # Slurm's numbers begin again after 67 million jobs, or with a new cluster: the last one counts.
            newest[submitted.cluster, submitted.job] = submitted
        else:
            damaged += 1
    return sorted(newest.values(), key=lambda submission: submission.submitted), damaged


def parse_submitted(output: str) -> tuple[str, str]:
    """Number and cluster of the job that sbatch --parsable has submitted; empty texts if it printed something else."""
    *_, last = output.splitlines() or [""]  # a site's plug-in may print lines of its own
    match = SUBMITTED.fullmatch(last)
    return (match[1], match[2] or "") if match else ("", "")
