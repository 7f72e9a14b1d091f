"""How a run ended and how far it came: `Failure` is what one rank says, `RunEnd` is the end of the whole run.

A failure goes as these fields from the rank through its agent to the launcher, and into the run's folder: no code reads
the sentences. `end.json` in the folder is written by rank 0, by a failing rank, or by the launcher, which knows more.
--on-end is a command of the user's that is told the end through its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hvdtrain.errors import INTERRUPTED, HvdtrainError, Stopped
from hvdtrain.system import credentials, start_folder
from hvdtrain.system.checkpoint_folder import Entry, newest_whole
from hvdtrain.system.files import (
    Damaged,
    changed_at_ns,
    decoded,
    file_system_time,
    last_bytes,
    read_record,
    write_atomically,
)
from hvdtrain.system.processes import describe_status
from hvdtrain.system.python_files import user_lines
from hvdtrain.system.rank_info import host_name
from hvdtrain.system.text import printable

FILE = "end.json"
Status = Literal["finished", "stopped", "pruned", "failed", "hung", "restarting"]
"""`pruned`: a sweep ended a trial that did worse than others. `restarting`: an attempt failed, and the launcher starts
the next one."""
RUN_ID = re.compile(r"[0-9a-f]{16}")
LAST_LINES = 8
"""Lines of a rank's output that the message about its failure shows."""
REASON_CHARACTERS = 4000
END_BYTES = 1 << 16
"""Of a file, in which its newest record is looked for."""
OF_RANKS = re.compile(
    r"(HOROVOD|OMPI|PMIX|PMI|PRTE)_\w+|MASTER_(ADDR|PORT)|MPI_LOCAL\w+|(LOCAL_)?(RANK|WORLD_SIZE)"
    r"|SLURM_(PROCID|STEP_NUM_TASKS|LOCALID)|HVDTRAIN_(RANK|SIZE|LOCAL_RANK|TOKEN|TOKEN_FILE|AGENT_PIPE|MEMBERSHIP"
    r"|SUPERVISOR|VARIABLES_FILE|LAUNCHER|JOB|RUN_NAME|RESUME)"
)
"""Variables by which a program knows that it is a rank, and the job's own secrets: the command is not a rank."""


@dataclass(frozen=True)
class Failure:
    """Why a rank failed, or why a job could not start."""

    reason: str = ""
    """What happened; empty where the rank said nothing, as one that was killed."""
    remedy: str = ""
    option: str = ""
    """The option at fault, as its field is named; empty where none is."""
    rank: int | None = None
    """The rank at fault; None where none is, or the one that says this does not know."""
    host: str = ""
    """The host of that rank."""
    step: int | None = None
    """The step at which it happened, where that is known."""
    retry: bool | None = None
    """Whether a restart may succeed: not where options and data alone decide the failure; None if that is unknown."""
    resumable: bool = True
    """Whether to say how the run is resumed: not where the remedy says it already."""
    stands_alone: bool = False
    """Whether `reason` needs no rank in front of it: it names one, or there is only one."""
    lost_peer: bool = False
    """Whether the rank says that it has only lost another one."""
    stopped: bool = False
    """Whether it is no failure: training was asked to stop, and wrote a checkpoint."""
    at_start: bool = False
    """Whether the job could not start: an option is wrong, hosts differ, or a rank did not register."""
    status: int | None = None
    """How the rank's program ended, as Popen has it; None where its host or agent was lost."""
    last_lines: tuple[str, ...] = ()
    """What the rank printed last, where it did not say why it failed."""
    traceback: tuple[str, ...] = ()
    """Where an exception is the user's code's: the lines of its traceback with the user's frames (`user_lines`)."""

    @classmethod
    def of_exception(cls, error: BaseException) -> Failure:
        """What an exception says. The rank and its host are those of an error of all ranks, else still unknown."""
        if not isinstance(error, HvdtrainError):
            summary = (str(error).strip().splitlines() or [""])[-1]  # MXNet's messages begin with a traceback
            if isinstance(error, KeyboardInterrupt):
                return cls("interrupted")
            return cls(f"{type(error).__name__}: {summary:.{REASON_CHARACTERS}}", traceback=user_lines(error))
        return cls(
            error.reason,
            error.remedy,
            error.option,
            error.rank,
            step=error.step,
            retry=error.retry,
            resumable=error.resumable,
            stands_alone=error.rank is not None,
            lost_peer=error.lost_peer,
            stopped=isinstance(error, Stopped),
            traceback=user_lines(error.__cause__) if error.__cause__ else (),
        )

    def of_rank(self, rank: int, host: str) -> Failure:
        """The same, as a failure of this rank unless it is known to be another's."""
        return self if self.rank is not None else replace(self, rank=rank, host=host)

    @property
    def how(self) -> str:
        """How the rank's program ended: `was killed by SIGKILL`."""
        if self.status is None:
            return "disconnected unexpectedly: its host or its agent there died"
        return describe_status(self.status)

    @property
    def summary(self) -> str:
        """One line: which rank, on which host, and what happened."""
        if self.rank is None or self.stands_alone:
            return self.reason
        where = f"rank {self.rank} on {self.host}" if self.host else f"rank {self.rank}"
        return f"{where}: {self.reason}" if self.reason else f"{where} {self.how}"

    @property
    def text(self) -> str:
        """The summary, and the last line that the rank printed."""
        return self.summary + (f" ({self.last_lines[-1].strip()})" if self.last_lines else "")

    def __str__(self) -> str:
        return f"{self.summary}; {self.remedy}" if self.remedy else self.summary

    def message(self, ends_others: bool) -> str:
        """For the console. ends_others: whether other ranks run, which are ended now."""
        lines = "".join(f"\n  {line}" for line in self.last_lines[-LAST_LINES:])
        parts = [str(self), "ending the others" if ends_others else "", f"its last lines:{lines}" if lines else ""]
        return "; ".join(part for part in parts if part) + self.indented_traceback

    @property
    def indented_traceback(self) -> str:
        """The lines of the traceback, each after an end of line; empty where there are none."""
        return "".join(f"\n  {printable(line)}" for line in self.traceback)


@dataclass(frozen=True)
class RunEnd:
    """How a run, or an attempt of its job, ended."""

    status: Status
    exit_status: int = 0
    failure: Failure | None = None
    """Why it ended; None for a run that finished."""
    time: float = 0.0
    """Seconds since the epoch."""

    @property
    def reason(self) -> str:
        """Why it ended; empty for a run that finished."""
        return self.failure.text if self.failure else "asked to stop" if self.status == "stopped" else ""

    @property
    def rank(self) -> int | None:
        """The rank that failed first; None where none did, or none is known."""
        return self.failure.rank if self.failure and self.status != "stopped" else None

    @property
    def host(self) -> str:
        """The host of that rank."""
        return self.failure.host if self.failure and self.status != "stopped" else ""

    @classmethod
    def of_exception(cls, error: BaseException) -> RunEnd:
        """The end of a process of training that raised this."""
        other = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        return cls.of_process(getattr(error, "exit_status", other), Failure.of_exception(error))

    @classmethod
    def of_process(cls, exit_status: int, failure: Failure | None = None) -> RunEnd:
        """The end of a process of training with this exit status."""
        stopped = exit_status in (Stopped.exit_status, INTERRUPTED)
        return cls("stopped" if stopped else "failed" if exit_status else "finished", exit_status, failure)

    def on_rank(self, rank: int, size: int) -> RunEnd:
        """The same, as the end of this rank of `size`, unless its failure is known to be another rank's."""
        if not self.failure:
            return self
        failure = self.failure.of_rank(rank, host_name())
        return replace(self, failure=replace(failure, stands_alone=failure.stands_alone or size == 1))

    def record(self) -> dict[str, Any]:
        """As JSON, with what users look for in it next to the whole failure."""
        return {**asdict(self), "reason": self.reason, "rank": self.rank, "host": self.host}

    def write(self, folder: Path, replace: bool = True) -> None:
        """Write it to a run's folder. Does nothing where the folder does not accept it.

        replace: whether it takes the place of one that is there already.
        """
        path = folder / FILE
        if os.path.isdir(folder) and (replace or not os.path.exists(path)):
            with contextlib.suppress(OSError):  # nobody can be told: what failed was reported already
                write_atomically(path, json.dumps({**self.record(), "time": self.time or time.time()}) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunEnd | None:
        """The one in a run's folder; None where there is none, or what is there was not written by `write`."""
        try:
            return read_record(folder / FILE, cls)
        except Damaged:
            return None

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the one in a run's folder, as the run goes on. Does nothing where the folder does not allow it."""
        with contextlib.suppress(OSError):
            os.unlink(folder / FILE)


def run_id(folder: Path) -> str:
    """The id of the run in a folder, which restarts do not change; empty where there is none yet, or none is valid."""
    with contextlib.suppress(Damaged, ValueError):  # ValueError for a name that no folder has
        value = read_record(folder / "config.json", dict[str, Any]).get("id")
        return value if isinstance(value, str) and RUN_ID.fullmatch(value) else ""
    return ""


def newest_checkpoint(folder: Path | None) -> Entry | None:
    """The checkpoint from which the run in a folder resumes; None where there is none."""
    return newest_whole(folder / "checkpoints") if folder else None


def how_to_resume(folder: Path | None, begin: str = "; ") -> str:
    """The end of a message: how the run in a folder is resumed. Empty where it has no whole checkpoint."""
    checkpoint = newest_checkpoint(folder)
    return f"{begin}resume from step {checkpoint.step} with --resume {folder}" if checkpoint else ""


def recorded_hang(folder: Path, since: float) -> RunEnd | None:
    """The end by a hang that ranks have recorded since then (seconds since the epoch); None where they have not."""
    end = RunEnd.read(folder)
    try:
        is_new = os.path.getmtime(folder / FILE) >= time_of_files(folder, since)
    except OSError:
        return None
    return end if end and end.status == "hung" and is_new else None


@dataclass(frozen=True)
class Stepped:
    """What heartbeats and records of metrics have."""

    step: int


def last_step(folder: Path | None, since: float = 0.0) -> int | None:
    """The last step that a rank has reported since then (seconds since the epoch); None where none has.

    Heartbeats are written twice a second, in which many steps may follow; the records of rank 0 may know of more.
    """
    # For names too long to be a path os.path.isdir is False, while pathlib raises.
    if not folder or not os.path.isdir(folder):
        return None
    steps = []
    with contextlib.suppress(OSError):
        began = time_of_files(folder, since) if since else 0.0
        for path in (*folder.glob("heartbeats/rank-*.json"), folder / "metrics.jsonl"):
            steps += _steps(path) if changed_at_ns(path) >= began * 1e9 else []
    return max((step for step in steps if step >= 0), default=None)


def _steps(path: Path) -> list[int]:
    """The step of a heartbeat, or of the newest record of a run's metrics."""
    for line in reversed(last_bytes(path, END_BYTES).splitlines()):
        with contextlib.suppress(Damaged):  # a part of a line, or no record
            return [decoded(path, line, Stepped).step]
    return []


def time_of_files(folder: Path, at: float) -> float:
    """A time of this host's clock by the file system's, which may differ: files are compared with each other only.

    Raises OSError if no file can be created in the folder.
    """
    return file_system_time(folder) - (time.time() - at)


def progress(folder: Path | None, since: float) -> str:
    """How far a job that has failed came, and how to resume it; empty where that is unknown.

    since: when it began, in seconds since the epoch.
    """
    checkpoint, step = newest_checkpoint(folder), last_step(folder, since)
    reached = "" if step is None else f"the last step known is {step}" if step else "no step is known to be done"
    if not checkpoint:
        return f"{reached}, and no checkpoint was written yet" if reached else ""
    saved = f"the newest checkpoint is of step {checkpoint.step}; resume with --resume {folder}"
    # A heartbeat may be older than a checkpoint of the same moment.
    return f"{reached}, {saved}" if step is not None and step > checkpoint.step else saved


def run_on_end(command: str, end: RunEnd, folder: Path | None, limit_s: float) -> str:
    """Run the command of --on-end in a shell; why it failed, or an empty string. It is killed after limit_s seconds.

    What it is told is in its environment only, so that no text from a run becomes a part of the command. folder: the
    run's; None where it is not known, as for programs that are not hvdtrain's.
    """
    inherited = {name: value for name, value in os.environ.items() if not OF_RANKS.fullmatch(name)}
    timeout = shutil.which("timeout")  # which also ends it where this process is killed before it could
    limit = [timeout, "--signal=KILL", f"{limit_s + 5:g}"] if timeout else []
    try:
        process = subprocess.Popen(
            [*limit, "/bin/sh", "-c", command],
            cwd=start_folder.START or None,
            env={**inherited, **on_end_variables(end, folder)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"--on-end cannot be started ({error})"
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"the command of --on-end did not end within {limit_s:g} s, and was killed"
    return f"the command of --on-end {describe_status(status)}" if status else ""


def on_end_variables(end: RunEnd, folder: Path | None) -> dict[str, str]:
    """What the command of --on-end is told; a variable that does not apply is empty."""
    reason = printable(credentials.removed(end.reason))[:REASON_CHARACTERS]
    return {
        "HVDTRAIN_STATUS": end.status,
        "HVDTRAIN_EXIT_STATUS": str(end.exit_status),
        "HVDTRAIN_REASON": os.fsdecode(reason.encode(sys.getfilesystemencoding(), "backslashreplace")),
        "HVDTRAIN_RUN": str(folder.absolute()) if folder else "",
        "HVDTRAIN_RUN_ID": run_id(folder) if folder else "",
        "HVDTRAIN_RANK": "" if end.rank is None else str(end.rank),
    }
