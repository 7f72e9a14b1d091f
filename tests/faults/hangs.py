"""A rank hangs: the watchdog names it, and the job restarts."""

from __future__ import annotations

import signal
import time

from faults.kills import signal_rank
from faults.suite import Row, Suite
from faults.watched_job import HANG_S, WatchedJob


def freeze(suite: Suite, launcher: str, framework: str) -> Row:
    """SIGSTOP of a rank: its heartbeat stops, and the other ranks wait."""
    return signal_rank(suite, launcher, framework, signal.SIGSTOP, "no heartbeat of rank {rank} ", HANG_S + 5)


def sleep(suite: Suite, launcher: str, framework: str) -> Row:
    """A rank sleeps in Python code, once."""
    job = WatchedJob(suite.new_folder(), launcher, framework, "sleep", launch_options=["--restarts", "2"])
    job.wait((job.folder / "slept").exists, 120, "asleep")
    began = time.time()
    detected = job.reported("rank 1 (process ", began, HANG_S + 20)
    job.end(0)
    suite.check_weights(job)
    job.check_time(detected - began, HANG_S + 5, "it was detected")
    return Row("a rank sleeps in Python", launcher, framework, detected - began)
