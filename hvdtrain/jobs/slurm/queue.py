"""What Slurm says about jobs: squeue for those that wait, run or ended a short time ago, sacct for older ones.

sacct needs Slurm's accounting, which not every site has; without it, Slurm forgets a job some minutes after its end.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.jobs.slurm.submissions import JOB_ID, Submission
from hvdtrain.system.text import last_line

TIMEOUT_S = 60.0
"""How long a command of Slurm may take."""
SEPARATOR = "\x1f"
"""Between the fields of a line: no name holds it."""
ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD",
          "REQUEUE_FED", "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD")  # fmt: skip
"""States of jobs that have not ended for good."""
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""Those of jobs without processes."""
FIELDS = "FKTuMDrSNj"
"""squeue's letters for the fields below; the name is last."""
SACCT_FIELDS = "JobID,State,User,Elapsed,NNodes,Reason,Start,NodeList,JobName"
PER_QUERY = 200
"""Jobs whose numbers are on one command line."""


class QueuedJob(NamedTuple):
    """A job, or a task of an array, as Slurm knows it."""

    job: str
    """The number under which it was submitted: of an array, that of all its tasks."""
    task: str
    """The index in an array; empty for a single job."""
    state: str
    """Such as RUNNING."""
    user: str
    elapsed: str
    """As Slurm writes it: 1-02:03:04."""
    nodes: int
    reason: str
    """Slurm's word for why it waits, or why it failed; may be empty."""
    start: str
    """When it started, or is expected to start; empty where that is unknown."""
    hosts: str
    name: str
    cluster: str = ""
    """Slurm's cluster, if another than the host's own was asked."""

    @property
    def id(self) -> str:
        return f"{self.job}_{self.task}" if self.task else self.job

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def waits(self) -> bool:
        return self.state in WAITING


def require() -> None:
    """Raises UserError where Slurm's commands are missing."""
    for name in ("squeue", "scancel"):
        if not shutil.which(name):
            raise UserError(
                f"{name} is not on PATH, so Slurm cannot be asked", "work on a host where Slurm is installed"
            )


def own_user() -> str:
    """The name of this user; of one without an entry, the number, as Slurm writes it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def find(jobs: Iterable[str], cluster: str = "") -> list[QueuedJob]:
    """What Slurm knows about these jobs, with one entry for each task of an array.

    Jobs that it does not know, or no longer, are missing. Raises UserError where Slurm does not answer.
    """
    wanted = list(dict.fromkeys(jobs))
    recent = find_recent(wanted, cluster)
    return recent + find_ended(sorted(set(wanted) - {job.job for job in recent}), cluster)


def find_recent(jobs: Sequence[str], cluster: str = "") -> list[QueuedJob]:
    """The same, of jobs that wait, run, or ended a short time ago."""
    return [job._replace(cluster=cluster) for part in _parts(jobs) for job in _squeue(part, cluster)]


def find_ended(jobs: Sequence[str], cluster: str = "") -> list[QueuedJob]:
    """The same, of jobs that ended before, from Slurm's accounts, where a long list takes long."""
    return [job._replace(cluster=cluster) for part in _parts(jobs) for job in _sacct(part, cluster)]


def of(known: Iterable[QueuedJob], job: str, task: str = "", cluster: str = "") -> list[QueuedJob]:
    """Those of a job, or of one task of an array: clusters may have given the same number."""
    return [entry for entry in known if (entry.job, entry.cluster) == (job, cluster) and task in ("", entry.task)]


def _parts(jobs: Sequence[str]) -> list[list[str]]:
    return [list(jobs[first : first + PER_QUERY]) for first in range(0, len(jobs), PER_QUERY)]


def run(
    program: str, *options: str, cluster: str = "", timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands. Raises UserError if it cannot be started or does not end."""
    command = [program, *([f"--clusters={cluster}"] if cluster else []), *options]
    # Times and numbers as below, whatever the user's variables ask for.
    environment = {name: value for name, value in os.environ.items() if not re.match(r"(SQUEUE|SACCT|SCANCEL)_", name)}
    environment |= {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except OSError as error:
        raise UserError(f"{program} cannot be started ({error.strerror})", "install Slurm's commands") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{program} did not answer within {timeout_s:.0f} s", "check whether sinfo answers") from None


def _squeue(jobs: list[str], cluster: str) -> list[QueuedJob]:
    fields = SEPARATOR.join(f"%{letter}" for letter in FIELDS)
    # An unknown number is an error where it is the only one, and is left out where there are several.
    done = run("squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(jobs)}",
               f"--format={fields}", cluster=cluster)  # fmt: skip
    if done.returncode and "Invalid job id" not in done.stderr:
        raise UserError(f"squeue failed ({last_line(done.stderr)})", "check whether sinfo answers")
    return [job for line in done.stdout.splitlines() if (job := parse_squeue(line))]


def parse_squeue(line: str) -> QueuedJob | None:
    """The job of a line; None for one of another kind, such as the name of a cluster."""
    values = line.split(SEPARATOR, len(FIELDS) - 1)
    if len(values) != len(FIELDS) or not JOB_ID.fullmatch(values[0]):
        return None
    job, task, state, user, elapsed, nodes, reason, start, hosts, name = values
    task = task if task.isdecimal() else ""  # N/A
    return QueuedJob(
        job, task, state, user, elapsed, _number(nodes), _known(reason), _known(start), hosts.strip("()"), name
    )


def _sacct(jobs: list[str], cluster: str) -> list[QueuedJob]:
    """Jobs that have ended; none where Slurm keeps no accounts."""
    if not shutil.which("sacct"):
        return []
    done = run("sacct", "--noheader", "--allocations", "--parsable2", f"--delimiter={SEPARATOR}",
               f"--jobs={','.join(jobs)}", f"--format={SACCT_FIELDS}", cluster=cluster)  # fmt: skip
    return [job for line in done.stdout.splitlines() if (job := parse_sacct(line))] if not done.returncode else []


def parse_sacct(line: str) -> QueuedJob | None:
    """The job of a line; None for one of another kind, and for tasks of an array that have not begun."""
    values = line.split(SEPARATOR, SACCT_FIELDS.count(","))
    match = re.fullmatch(r"([0-9]{1,10})(?:_([0-9]+))?", values[0])
    if not match or len(values) <= SACCT_FIELDS.count(","):
        return None
    _, state, user, elapsed, nodes, reason, start, hosts, name = values
    word = state.split()[0] if state.split() else ""  # CANCELLED by 1000
    hosts = "" if hosts == "None assigned" else hosts
    return QueuedJob(
        match[1], match[2] or "", word, user, elapsed, _number(nodes), _known(reason), _known(start), hosts, name
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _known(text: str) -> str:
    return "" if text in ("None", "N/A", "Unknown", "(null)") else text


@dataclass
class NamedJob:
    """A job, or one task of an array."""

    job: str
    task: str = ""
    """Empty: all tasks of an array."""
    submission: Submission | None = None
    """None for a job that the launcher did not submit."""

    @property
    def id(self) -> str:
        return f"{self.job}_{self.task}" if self.task else self.job

    @property
    def cluster(self) -> str:
        return self.submission.cluster if self.submission else ""

    def entries(self, known: list[QueuedJob]) -> list[QueuedJob]:
        """Those of what Slurm knows that it consists of."""
        return of(known, self.job, self.task, self.cluster)
