"""Ends submitted jobs: those that run are asked to write a checkpoint first, and none is queued again.

A batch script of ours forwards SIGTERM to its launcher, which forwards it to the ranks, and does not queue its job
again after that. So ranks have the launcher's time for a checkpoint, and not only Slurm's KillWait.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hvdtrain.errors import UserError
from hvdtrain.jobs.slurm import queue
from hvdtrain.jobs.slurm.queue import NamedJob, QueuedJob
from hvdtrain.system import run_end
from hvdtrain.system.text import last_line

WAIT_S = 90.0
"""How long jobs may take to end by themselves: the launcher kills its ranks after 60 s."""
SIGNAL_S = 4.0
"""How long scancel may take to send a signal."""
POLL_S = 1.0
KILLED_S = 10.0
"""How long jobs that scancel ends are watched."""


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
        self._scancel(*options, self.id, limit_s=queue.TIMEOUT_S)

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
            done = queue.run("scancel", *words, cluster=self.cluster, timeout_s=limit_s)
            changing = "try again later" in done.stderr or "already completing" in done.stderr
            self.error = last_line(done.stderr) if done.returncode and not changing else ""


def cancel(
    jobs: list[Cancellation],
    find: Callable[[list[Cancellation]], list[QueuedJob]],
    say: Callable[[str], None],
    wait_s: float = WAIT_S,
) -> None:
    """End the jobs, and say what came of each. find: what Slurm knows about them.

    wait_s: how long those that run may take for a checkpoint; 0: end them at once.
    """
    known = find(jobs)
    for job in jobs:
        active = [entry for entry in job.entries(known) if entry.active]
        if not active:
            states = sorted({entry.state for entry in job.entries(known)})
            _end(job, f"had ended before ({', '.join(states) or 'Slurm has no record of it any more'})", say)
        elif all(entry.waits for entry in active):
            job.scancel()
        else:
            _ask(job, active, wait_s)
    _watch(jobs, find, say, wait_s)
    left = [job for job in jobs if not job.ended]
    for job in left:
        job.killed = True
        job.scancel()
    _watch(left, find, say, KILLED_S)
    for job in left:
        if not job.ended:
            _end(job, "has not ended yet: Slurm is ending it", say)


def _ask(job: Cancellation, active: list[QueuedJob], wait_s: float) -> None:
    """Ask what runs for a checkpoint; what waits ends at once."""
    if not job.submission or not wait_s:
        job.killed = True
        job.scancel()
        return
    if any(entry.waits for entry in active):
        job.scancel("--state=PENDING")
    job.terminate()


def _watch(
    jobs: list[Cancellation],
    find: Callable[[list[Cancellation]], list[QueuedJob]],
    say: Callable[[str], None],
    seconds: float,
) -> None:
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
