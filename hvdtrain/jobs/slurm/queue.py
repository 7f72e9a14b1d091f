"""What Slurm says about jobs, and how they are ended.

squeue knows those that wait, run or ended a short time ago, sacct older ones. sacct needs Slurm's accounting, which not
every site has; without it, Slurm forgets a job some minutes after its end.

Jobs that run are asked to write a checkpoint before they end, and none is queued again: a batch script of ours forwards
SIGTERM to its launcher, which forwards it to the ranks, and does not queue its job again after that. So ranks have the
launcher's time for a checkpoint, and not only Slurm's KillWait.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.jobs.slurm.submissions import JOB_ID, Submission
from hvdtrain.system import run_end
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
WAIT_S = 90.0
"""How long jobs may take to end by themselves: the launcher kills its ranks after 60 s."""
SIGNAL_S = 4.0
"""How long scancel may take to send a signal."""
POLL_S = 1.0
KILLED_S = 10.0
"""How long jobs that scancel ends are watched."""


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
        # Clusters may have given the same number.
        known = [entry for entry in known if (entry.job, entry.cluster) == (self.job, self.cluster)]
        return [entry for entry in known if self.task in ("", entry.task)]


def require() -> None:
    """Raises UserError where Slurm's commands are missing."""
    for name in ("squeue", "scancel"):
        if not shutil.which(name):
            reason = f"{name} is not on PATH, so Slurm cannot be asked"
            raise UserError(reason, "work on a host where Slurm is installed")


def current_user() -> str:
    """The name of this user; of one without an entry, the number, as Slurm writes it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def find(jobs: Sequence[NamedJob], ended: bool = True) -> list[QueuedJob]:
    """What Slurm knows about jobs, with one entry for each task of an array.

    Jobs that it does not know, or no longer, are missing. ended: whether also those that ended some time ago. Raises
    UserError where Slurm does not answer.
    """
    known: list[QueuedJob] = []
    for cluster in sorted({job.cluster for job in jobs}):
        numbers = list(dict.fromkeys(job.job for job in jobs if job.cluster == cluster))
        recent = find_recent(numbers, cluster)
        known += recent
        if ended:
            known += find_ended(sorted(set(numbers) - {entry.job for entry in recent}), cluster)
    return known


def find_recent(jobs: Sequence[str], cluster: str = "") -> list[QueuedJob]:
    """What Slurm knows about jobs with these numbers that wait, run, or ended a short time ago."""
    return [job._replace(cluster=cluster) for part in _parts(jobs) for job in _squeue(part, cluster)]


def find_ended(jobs: Sequence[str], cluster: str = "") -> list[QueuedJob]:
    """What Slurm knows about jobs that ended before, from its accounts, where a long list takes long."""
    return [job._replace(cluster=cluster) for part in _parts(jobs) for job in _sacct(part, cluster)]


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
    hosts = hosts.strip("()")
    return QueuedJob(job, task, state, user, elapsed, _number(nodes), _known(reason), _known(start), hosts, name)


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
    job, task = match[1], match[2] or ""
    state = state.split()[0] if state.split() else ""  # CANCELLED by 1000
    hosts = "" if hosts == "None assigned" else hosts
    return QueuedJob(job, task, state, user, elapsed, _number(nodes), _known(reason), _known(start), hosts, name)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _known(text: str) -> str:
    return "" if text in ("None", "N/A", "Unknown", "(null)") else text


@dataclass
class Cancellation(NamedJob):
    """A job that is to end; of one without a submission nobody knows what its script does with SIGTERM."""

    ended: str = ""
    """What came of it; empty while the job runs."""
    asked: bool = False
    killed: bool = False
    error: str = ""
    """What scancel said last, if it failed."""
    failed: bool = False
    """Whether it could not be ended."""
    began: float = field(default_factory=time.monotonic)

    def scancel(self, *options: str) -> None:
        self._scancel(*options, self.id, limit_s=TIMEOUT_S)

    def terminate(self) -> None:
        """Send SIGTERM to its script, only once: the launcher takes a second one for an order to end at once.

        If other tasks of its array wait, Slurm 22.05 delivers the signal, but says that it did not, and scancel sends
        it again after 5 s.
        """
        self.asked = True
        self._scancel("--batch", "--signal=TERM", self.id, limit_s=SIGNAL_S)

    def _scancel(self, *words: str, limit_s: float) -> None:
        self.error = ""
        with contextlib.suppress(UserError):  # no answer: what comes of it is watched anyway
            done = run("scancel", *words, cluster=self.cluster, timeout_s=limit_s)
            changing = "try again later" in done.stderr or "already completing" in done.stderr
            self.error = last_line(done.stderr) if done.returncode and not changing else ""


def cancel(jobs: list[Cancellation], say: Callable[[str], None], at_once: bool = False) -> None:
    """End the jobs, and say what came of each. at_once: whether those that run are given no time for a checkpoint."""
    known = find(jobs)
    for job in jobs:
        active = [entry for entry in job.entries(known) if entry.active]
        if not active:
            states = sorted({entry.state for entry in job.entries(known)})
            _end(job, f"had ended before ({', '.join(states) or 'Slurm has no record of it any more'})", say)
        elif all(entry.waits for entry in active):
            job.scancel()
        else:
            _ask(job, active, at_once)
    _watch(jobs, say, 0.0 if at_once else WAIT_S)
    left = [job for job in jobs if not job.ended]
    for job in left:
        job.killed = True
        job.scancel()
    _watch(left, say, KILLED_S)
    for job in left:
        if not job.ended:
            _end(job, "has not ended yet: Slurm is ending it", say)


def _ask(job: Cancellation, active: list[QueuedJob], at_once: bool) -> None:
    """Ask what runs for a checkpoint; what waits ends at once."""
    if not job.submission or at_once:
        job.killed = True
        job.scancel()
        return
    if any(entry.waits for entry in active):
        job.scancel("--state=PENDING")
    job.terminate()


def _watch(jobs: list[Cancellation], say: Callable[[str], None], seconds: float) -> None:
    """Until all have ended, but not longer than that."""
    deadline = time.monotonic() + seconds
    while left := [job for job in jobs if not job.ended]:
        try:
            known = find(left)
        except UserError:  # Slurm is busy: jobs that were asked to end must still be watched, and ended
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
            continue
        for job in left:
            active = [entry for entry in job.entries(known) if entry.active]
            if not active:
                _end(job, _outcome(job), say)
            elif job.error and any(entry.state != "COMPLETING" for entry in active):
                job.failed = True
                _end(job, f"cannot be cancelled ({job.error})", say)
            elif job.asked and any(entry.waits for entry in active):  # it was queued again meanwhile
                job.scancel("--state=PENDING")
        if time.monotonic() > deadline:
            return
        if any(not job.ended for job in left):
            time.sleep(POLL_S)


def _outcome(job: Cancellation) -> str:
    if job.killed and not job.asked:
        return "cancelled"
    if not job.asked:
        return "cancelled before it started"
    seconds = f"{time.monotonic() - job.began:.0f} s"
    how = f"did not end when asked to; ended by scancel after {seconds}" if job.killed else f"ended after {seconds}"
    folder = job.submission.run_folder(job.task) if job.submission else None
    checkpoint = run_end.newest_checkpoint(folder)
    if checkpoint:
        return f"{how}; its newest checkpoint is of step {checkpoint.step}: resume with --resume {folder}"
    return how


def _end(job: Cancellation, text: str, say: Callable[[str], None]) -> None:
    job.ended = text
    say(f"{job.id}: {text}")
