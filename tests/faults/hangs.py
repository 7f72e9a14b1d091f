"""A rank hangs: the watchdog names it, and the job restarts."""

from __future__ import annotations

import os
import signal
import time

from faults.kills import signal_rank
from faults.suite import Row, Suite
from faults.watched_job import HANG_S, STEPS, Mismatch


def freeze(suite: Suite, launcher: str, framework: str) -> Row:
    """SIGSTOP of a rank: its heartbeat stops, and the other ranks wait."""
    return signal_rank(suite, launcher, framework, signal.SIGSTOP, "no heartbeat of rank {rank} ", HANG_S + 10)


def suspend(suite: Suite, launcher: str, framework: str) -> Row:
    """SIGSTOP of all ranks, and SIGCONT of one after the other: only time is lost."""
    job = suite.job(launcher, framework, launch_options=["--restarts", "2"])
    job.wait_for_step(suite.random.randrange(2, STEPS - 8))
    ranks = suite.random.sample([job.pid(0), job.pid(1)], 2)
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * HANG_S)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
        time.sleep(HANG_S + 2)
    job.end(0)
    suite.check_weights(job)
    suite.check_not_restarted(job)
    return Row("all ranks are suspended and resumed", launcher, framework)


def skew(suite: Suite, launcher: str, framework: str) -> Row:
    """The clock of rank 1 is an hour ahead: a rank that sleeps is named, and not one that runs."""
    options = ["--restarts", "2"]
    job = suite.job(launcher, framework, "sleep_with_skewed_clock", launch_options=options)
    job.wait((job.folder / "slept").exists, 120, "asleep")
    began = time.time()
    detected = job.reported(") is at programs.py:", began, HANG_S + 20)
    job.end(0)
    suite.check_weights(job)
    if "no heartbeat of" in job.output:
        raise Mismatch(f"a rank that runs was named:\n{job.output}")
    return Row("a clock is an hour ahead, a rank sleeps", launcher, framework, detected - began)


def sleep(suite: Suite, launcher: str, framework: str) -> Row:
    """A rank sleeps in Python code, once."""
    job = suite.job(launcher, framework, "sleep", launch_options=["--restarts", "2"])
    job.wait((job.folder / "slept").exists, 120, "asleep")
    began = time.time()
    detected = job.reported(") is at programs.py:", began, HANG_S + 20)
    job.end(0)
    suite.check_weights(job)
    job.check_time(detected - began, HANG_S + 5, "it was detected")
    return Row("a rank sleeps in Python", launcher, framework, detected - began)
