"""A job is asked to stop: it writes a checkpoint, exits with status 75, and the same command continues it."""

from __future__ import annotations

import os
import signal
import time

from faults.suite import Row, Suite
from faults.watched_job import STEPS


def ask(suite: Suite, launcher: str, framework: str) -> Row:
    """A signal to the launcher or to a rank, or a file in the run's folder."""
    job = suite.job(launcher, framework)
    job.wait_for_step(suite.random.randrange(2, STEPS - 8))
    name = suite.random.choice(["SIGTERM", "SIGINT", "SIGUSR1", "STOP"])
    target = suite.random.choice(["launcher", "rank 0", "rank 1"])
    if name == "STOP":
        target = "run's folder"
        (job.run / "STOP").touch()
    else:
        os.kill(job.process.pid if target == "launcher" else job.pid(int(target[-1])), getattr(signal, name))
    asked = time.time()
    reported = job.reported("was asked to stop by", asked, 30)
    job.end(75)
    suite.check_resumes(job)
    return Row(f"{name} to the {target}", launcher, framework, reported - asked, None, 0)


def interrupt(suite: Suite, launcher: str, framework: str) -> Row:
    """Ctrl-C: as with the other requests."""
    job = suite.job(launcher, framework)
    job.wait_for_step(suite.random.randrange(2, STEPS - 8))
    os.kill(job.process.pid, signal.SIGINT)
    asked = time.time()
    reported = job.reported("was asked to stop by SIGINT", asked, 30)
    job.end(75)
    suite.check_resumes(job)
    return Row("Ctrl-C", launcher, framework, reported - asked, None, 0)
