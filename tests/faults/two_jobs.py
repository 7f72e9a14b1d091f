"""Two jobs are given the same run: one has its folder, and the other one says so and leaves it alone."""

from __future__ import annotations

import time

from faults.suite import Row, Suite
from faults.watched_job import STEPS, Mismatch, WatchedJob


def same_name(suite: Suite, launcher: str, framework: str) -> Row:
    """A second job with the same command, while the first one trains."""
    first = WatchedJob(suite.new_folder(), launcher, framework, step_s=1.0)  # longer than the second one's start
    first.wait_for_step(suite.random.randrange(2, STEPS // 4))
    began = time.time()
    second = WatchedJob(first.folder, launcher, framework)
    refused = second.reported("runs/run is in use by process", began, 60)
    second.process.wait(30)
    if second.process.returncode != 2 or "Traceback" in second.output:
        raise Mismatch(f"exit status {second.process.returncode}:\n{second.output}")
    first.end(0)
    suite.check_weights(first)
    return Row("two jobs of one name", launcher, framework, refused - began, state="the first: same weights")
