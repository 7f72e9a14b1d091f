"""With --shards: a job is killed, then stopped, and each time continued by other ranks and another strategy."""

from __future__ import annotations

import os
import signal
import time

from faults.suite import SHARDS, Row, Suite
from faults.watched_job import STEPS


def change(suite: Suite, launcher: str, framework: str) -> Row:
    """kill -9 of a rank, and later a request to stop, both in the middle of an epoch."""
    suite.shards = SHARDS
    job = suite.job(launcher, framework)
    job.wait_for_step(suite.random.randrange(2, STEPS // 2 - 8))
    os.kill(job.pid(suite.random.randrange(job.ranks)), signal.SIGKILL)
    killed = time.time()
    job.process.wait(60)
    detected = job.reported("was killed by SIGKILL", killed, 1)
    second = suite.continued(job)
    second.wait_for_step(suite.random.randrange(STEPS // 2 + 5, STEPS - 8))
    os.kill(second.process.pid, signal.SIGTERM)
    second.end(75)
    third = suite.continued(second)
    third.end(0)
    suite.check_weights(third)
    ways = ", ".join(f"{one.ranks} of {one.strategy}" for one in (job, second, third))
    return Row(f"SIGKILL, then SIGTERM; ranks: {ways}", launcher, framework, detected - killed, state="same hash")
