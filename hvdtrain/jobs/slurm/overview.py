"""The jobs that were submitted, with what Slurm knows about them and how far their runs are."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.jobs import progress
from hvdtrain.jobs.slurm import queue, reasons
from hvdtrain.jobs.slurm.queue import QueuedJob
from hvdtrain.jobs.slurm.submissions import Submission
from hvdtrain.system.run_end import RunEnd

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
        own = {name: value for name, value in vars(self).items() if name != "submission"}
        made = self.submission
        return {
            **own,
            "active": self.active,
            "run": str(self.run) if self.run else None,
            "submitted": made.submitted if made else None,
            "folder": made.folder if made else None,
            "command": made.command if made else None,
            "cluster": made.cluster if made else "",
        }


def of_job(job: str, known: list[QueuedJob], submission: Submission | None, task: str = "") -> JobOverview:
    """The overview of a job, or of one task of an array.

    known: what Slurm knows about jobs, one entry for each task of an array.
    """
    entries = queue.of(known, job, task, submission.cluster if submission else "")
    if len(entries) == 1 and entries[0].task == task:
        return of_entry(entries[0], submission)
    found = JobOverview(f"{job}_{task}" if task else job, submission=submission, **_progress(submission, task))
    if submission:
        found.name = submission.name
    if not entries:
        found.why = _end(found.run) or "Slurm has no record of it any more"
        return found
    first, *_ = sorted(entries, key=lambda one: (not one.active, one.waits, one.state == "COMPLETED"))
    running = [one for one in entries if one.active and not one.waits]
    waiting = Counter(one.reason for one in entries if one.waits)
    found.name, found.state = found.name or first.name, first.state
    found.tasks = dict(sorted(Counter(one.state for one in entries).items()))
    found.elapsed = max((one.elapsed for one in running), key=_seconds, default="")
    found.nodes = sum(one.nodes for one in running)
    found.start = min((one.start for one in entries if one.start), default="")
    found.reason = waiting.most_common(1)[0][0] if waiting else ""
    found.why = reasons.in_words(found.reason, active=True)
    return found


def of_entry(entry: QueuedJob, submission: Submission | None) -> JobOverview:
    """The overview of a single job, or of one task of an array."""
    found = JobOverview(
        entry.id,
        submission.name if submission else entry.name,
        entry.state,
        elapsed=entry.elapsed,
        nodes=entry.nodes,
        hosts=entry.hosts,
        start=entry.start,
        reason=entry.reason,
        why=reasons.in_words(entry.reason, entry.active),
        submission=submission,
        **_progress(submission, entry.task),
    )
    found.why = found.why if entry.active else _end(found.run) or found.why
    return found


def _progress(submission: Submission | None, task: str) -> dict[str, Any]:
    """Run, step and results, as far as they can be found."""
    run, sweep = (submission.run_folder(task), submission.sweep_folder) if submission else (None, None)
    if sweep and os.path.isdir(sweep):
        return {"run": sweep, "results": sum(1 for _ in sweep.glob(f"*/{RESULT}"))}
    return {"run": run, "step": progress.last_step(run)} if run and os.path.isdir(run) else {}


def _end(run: Path | None) -> str:
    """How the run says that it ended; empty where it does not."""
    end = RunEnd.read(run) if run else None
    if run and not end and (run / RESULT).is_file():
        return "finished"
    return ": ".join(text for text in (end.status, end.reason) if text) if end else ""


def _seconds(elapsed: str) -> int:
    """Of 1-02:03:04 or 03:04; 0 for what is no time."""
    days, _, rest = elapsed.rpartition("-")
    found = 0
    for part in rest.split(":"):
        if not (part.isdecimal() and len(part) < 9):
            return 0
        found = found * 60 + int(part)
    return found + 86400 * int(days) if days.isdecimal() and len(days) < 9 else found
