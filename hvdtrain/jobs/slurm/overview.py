"""The jobs that were submitted, with what Slurm knows about them and how far their runs are."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.jobs.slurm import queue
from hvdtrain.jobs.slurm.queue import NamedJob, QueuedJob
from hvdtrain.jobs.slurm.submissions import Submission
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.run_steps import last_step

REASONS = {
    "AssociationJobLimit": "a limit on jobs of the account is reached",
    "BadConstraints": "no node has what the job asks for: cancel it, and ask for less",
    "BeginTime": "it may not start yet; a job that was queued again waits for up to two minutes",
    "BootFail": "a node could not be started",
    "BurstBufferResources": "it waits for space in the burst buffer",
    "Cleaning": "what remains of its last start is being removed",
    "DeadLine": "it cannot end before its deadline",
    "Dependency": "it waits for the jobs on which it depends",
    "DependencyNeverSatisfied": "a job on which it depends has failed, so it never starts: cancel it",
    "InvalidAccount": "the account is not valid: give another --account",
    "InvalidQOS": 'the QOS is not valid: give another --sbatch "--qos=NAME"',
    "JobArrayTaskLimit": "as many tasks of the array run as its % allows",
    "JobHeldAdmin": "an administrator holds it back",
    "JobHeldUser": "it is held back: scontrol release JOB starts it",
    "JobLaunchFailure": "Slurm could not start it: the log of the node may say why",
    "Licenses": "it waits for a license",
    "NodeDown": "a node that it asks for is down",
    "NonZeroExitCode": "its program failed",
    "OutOfMemory": "it used more memory than it asked for: give more --mem",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it asks for more nodes than the partition has or allows: cancel it, and give fewer --nodes",
    "PartitionTimeLimit": "its time limit is above that of the partition: cancel it, and give less --time",
    "Priority": "jobs of a higher priority come first",
    "Prolog": "its nodes are being prepared",
    "RaisedSignal": "a signal ended it",
    "Reservation": "it waits for its reservation",
    "ReqNodeNotAvail": "a node that it asks for is not available",
    "Resources": "it waits for nodes to become free",
    "SystemFailure": "Slurm or a node failed",
    "TimeLimit": "it reached its time limit",
}
BEGINNINGS = {
    "Assoc": "a limit of the account or user is reached",
    "MaxCpuPerAccount": "a limit of the account is reached",
    "Nodes_required_for_job_are_DOWN": "the nodes that it needs are down, drained or reserved",
    "Partition": "a limit of the partition is reached",
    "QOS": "a limit of the QOS is reached",
    "ReqNodeNotAvail": "a node that it asks for is not available",
}
"""Of words of which there are many, and of those that go on with details."""
OF_ENDED = ("BootFail", "DeadLine", "JobLaunchFailure", "NodeDown", "NonZeroExitCode", "OutOfMemory", "RaisedSignal",
            "SystemFailure", "TimeLimit")  # fmt: skip
"""Those that say why a job has ended; others stay from the time when it waited."""


def in_words(reason: str, active: bool) -> str:
    """Slurm's reason in words; as it is where there are none, and empty if there is nothing to say."""
    if not active and reason not in OF_ENDED:
        return ""
    if reason in REASONS:
        return REASONS[reason]
    text = next((words for beginning, words in BEGINNINGS.items() if reason.startswith(beginning)), "")
    return f"{text} ({reason})" if text else reason


RESULT = "result.json"
"""What a run writes when it is complete."""
FORGOTTEN = "ENDED"
"""The state of a job of which Slurm has no record any more."""


@dataclass
class JobOverview:
    """A job, or one task of an array."""

    id: str
    name: str = ""
    state: str = FORGOTTEN
    """Slurm's, such as RUNNING; of an array, that of most interest; ENDED where Slurm has forgotten it."""
    tasks: dict[str, int] = field(default_factory=dict)
    """How many tasks of an array are in each state; empty for a single job or task."""
    elapsed: str = ""
    nodes: int = 0
    hosts: str = ""
    start: str = ""
    """When it started, or is expected to; empty where that is unknown."""
    reason: str = ""
    """Slurm's word."""
    why: str = ""
    """Why it waits or has ended, in words; empty where there is nothing to say."""
    submission: Submission | None = None
    """None for a job that the launcher did not submit, or no longer knows."""
    run: Path | None = None
    """The folder of its run, or of its sweep, if it exists."""
    step: int | None = None
    """The last step known of its run."""
    results: int | None = None
    """Of a sweep: how many trials are complete."""

    @property
    def active(self) -> bool:
        return self.state in queue.ACTIVE

    def record(self) -> dict[str, Any]:
        """Its form in JSON."""
        values = {name: value for name, value in vars(self).items() if name != "submission"}
        made = self.submission
        return {
            **values,
            "active": self.active,
            "run": str(self.run) if self.run else None,
            "submitted": made.submitted if made else None,
            "folder": made.folder if made else None,
            "command": made.command if made else None,
            "cluster": made.cluster if made else "",
        }


def of_job(job: NamedJob, known: list[QueuedJob]) -> JobOverview:
    """The overview of a job, or of one task of an array.

    known: what Slurm knows about jobs, one entry for each task of an array.
    """
    entries, submission = job.entries(known), job.submission
    if len(entries) == 1 and entries[0].task == job.task:
        return of_entry(entries[0], submission)
    name = submission.name if submission else ""
    job_overview = JobOverview(job.id, name, submission=submission, **_progress(submission, job.task))
    if not entries:
        job_overview.why = _end(job_overview.run) or "Slurm has no record of it any more"
        return job_overview
    first, *_ = sorted(entries, key=lambda entry: (not entry.active, entry.waits, entry.state == "COMPLETED"))
    running = [entry for entry in entries if entry.active and not entry.waits]
    waiting = Counter(entry.reason for entry in entries if entry.waits)
    job_overview.name, job_overview.state = job_overview.name or first.name, first.state
    job_overview.tasks = dict(sorted(Counter(entry.state for entry in entries).items()))
    job_overview.elapsed = max((entry.elapsed for entry in running), key=_seconds, default="")
    job_overview.nodes = sum(entry.nodes for entry in running)
    job_overview.start = min((entry.start for entry in entries if entry.start), default="")
    job_overview.reason = waiting.most_common(1)[0][0] if waiting else ""
    job_overview.why = in_words(job_overview.reason, active=True)
    return job_overview


def of_entry(entry: QueuedJob, submission: Submission | None) -> JobOverview:
    """The overview of a single job, or of one task of an array."""
    name = submission.name if submission else entry.name
    same: dict[str, Any] = {field: getattr(entry, field) for field in ("elapsed", "nodes", "hosts", "start", "reason")}
    progress = _progress(submission, entry.task)
    job_overview = JobOverview(entry.id, name, entry.state, submission=submission, **same, **progress)
    why = in_words(entry.reason, entry.active)
    job_overview.why = why if entry.active else _end(job_overview.run) or why
    return job_overview


def _progress(submission: Submission | None, task: str) -> dict[str, Any]:
    """Run, step and results, as far as they can be found."""
    run, sweep = (submission.run_folder(task), submission.sweep_folder) if submission else (None, None)
    if sweep and os.path.isdir(sweep):
        return {"run": sweep, "results": sum(1 for _ in sweep.glob(f"*/{RESULT}"))}
    return {"run": run, "step": last_step(run)} if run and os.path.isdir(run) else {}


def _end(run: Path | None) -> str:
    """How the run says that it ended; empty where it does not."""
    end = RunEnd.read(run) if run else None
    if run and not end and (run / RESULT).is_file():
        return "finished"
    return ": ".join(text for text in (end.status, end.reason) if text) if end else ""


def _seconds(elapsed: str) -> int:
    """Of 1-02:03:04 or 03:04; 0 for what is not a time."""
    days, _, rest = elapsed.rpartition("-")
    seconds = 0
    for part in rest.split(":"):
        if not (part.isdecimal() and len(part) < 9):
            return 0
        seconds = seconds * 60 + int(part)
    return seconds + 86400 * int(days) if days.isdecimal() and len(days) < 9 else seconds
