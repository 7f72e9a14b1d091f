"""A rank is killed: the job names it, and its restart continues from the newest checkpoint."""

from __future__ import annotations

import os
import signal
import time

from faults.suite import Row, Suite
from faults.watched_job import EVERY, STEPS, Mismatch, WatchedJob


def kill(suite: Suite, launcher: str, framework: str) -> Row:
    """kill -9 of a rank."""
    return signal_rank(suite, launcher, framework, signal.SIGKILL, "was killed by SIGKILL", 2.0)


def signal_rank(
    suite: Suite, launcher: str, framework: str, number: signal.Signals, report: str, within_s: float
) -> Row:
    """Send a signal to a random rank at a random step. The job must report it within `within_s` and restart."""
    job, first_step_s = _start(suite, launcher, framework)
    at, rank = job.wait_for_step(suite.random.randrange(2, STEPS - 8)), suite.random.randrange(2)
    os.kill(job.pid(rank), number)
    sent = time.time()
    detected = job.reported(report.format(rank=rank), sent, within_s + 20)
    if f"rank {rank}" not in next(line for when, line in job.lines if when == detected):
        raise Mismatch(f"the job did not name rank {rank}:\n{job.output}")
    recovered_s = _wait_for_restart(job, detected) - sent - first_step_s
    job.end(0)
    suite.check_weights(job)
    lost = at - max(job.attempts()[1]["checkpoint"], 0)
    if lost > EVERY + 3:  # some steps run between reading the step and sending the signal
        raise Mismatch(f"{lost} steps were lost:\n{job.output}")
    job.check_time(detected - sent, within_s, "it was detected")
    job.check_time(recovered_s, within_s + 10, "it trained again")
    return Row(f"{number.name} to a rank", launcher, framework, detected - sent, max(recovered_s, 0.0), max(lost, 0))


def _start(suite: Suite, launcher: str, framework: str) -> tuple[WatchedJob, float]:
    """A job with restarts, under srun on two nodes; and the seconds from its start to its first step."""
    options, cluster = ["--restarts", "2"], None
    if launcher == "srun":
        options, cluster = [*options, "--nodes", "2"], suite.cluster()
    job = suite.job(launcher, framework, launch_options=options, cluster=cluster)
    job.wait_for_step(1)
    return job, time.time() - job.began


def _wait_for_restart(job: WatchedJob, since: float) -> float:
    """When the second attempt recorded a step."""
    job.reported("rank 0 of 2 starts with parameters", since, 60)
    path = job.run / "metrics.jsonl"
    before = path.stat().st_size
    job.wait(lambda: path.stat().st_size > before, 60)
    return time.time()
