"""Values of one rank become wrong: the job ends and says where."""

from __future__ import annotations

from faults.suite import Row, Suite
from faults.watched_job import WatchedJob


def nan(suite: Suite, launcher: str, framework: str) -> Row:
    """A loss that is not finite on one rank."""
    job = WatchedJob(suite.new_folder(), launcher, framework, "nan")
    job.end(1)
    job.reported("rank 1: loss is not finite at step 5, in training rows", 0, 1)
    return Row("NaN on a rank", launcher, framework, state="ended, rank, step and images named")


def drift(suite: Suite, launcher: str, framework: str) -> Row:
    """A parameter of one rank changes in memory."""
    job = WatchedJob(suite.new_folder(), launcher, framework, "drift", options=["--check-sync", "1"])
    job.end(1)
    job.reported("after step 6: parameter dense2.bias of rank 1 differs from rank 0's", 0, 1)
    return Row("a parameter of a rank changed", launcher, framework, state="ended, parameter named")
