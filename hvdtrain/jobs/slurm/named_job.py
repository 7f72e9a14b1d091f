"""A job of Slurm that somebody names: what the launcher and Slurm know about it."""

from __future__ import annotations

from dataclasses import dataclass

from hvdtrain.jobs.slurm import queue
from hvdtrain.jobs.slurm.queue import QueuedJob
from hvdtrain.jobs.slurm.submissions import Submission


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
        return queue.of(known, self.job, self.task, self.cluster)
