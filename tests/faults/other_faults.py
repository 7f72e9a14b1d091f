"""Requests to stop, output that nobody takes, two jobs of one name, and wrong values of a rank."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from support.jobs import start

from faults.suite import Row, Suite
from faults.watched_job import EVERY, STEPS, Mismatch, WatchedJob
from hvdtrain.runs import checkpoints
from hvdtrain.system.run_end import RunEnd

REDIRECTIONS = {"a full disk": "> /dev/full 2>&1", "a closed pipe": "2>&1 | true", "nobody": "2>&1 | sleep 30"}


def ask(suite: Suite, launcher: str, framework: str, name: str = "", target: str = "") -> Row:
    """A signal to the launcher or to a rank, Ctrl-C, or a file in the run's folder; by default a signal that is drawn.

    The job writes a checkpoint and exits with status 75, and the same command continues it.
    """
    name = name or suite.random.choice(["SIGTERM", "SIGINT", "SIGUSR1"])
    target = target or suite.random.choice(["launcher", "rank 0", "rank 1"])
    job = suite.job(launcher, framework)
    job.wait_for_step(suite.random.randrange(2, STEPS - 8))
    if name == "STOP":
        (job.run / "STOP").touch()
    else:
        os.kill(job.process.pid if target == "launcher" else job.pid(int(target[-1])), getattr(signal, name))
    asked = time.time()
    by = str((job.run / name).relative_to(job.folder)) if name == "STOP" else name
    reported = job.reported(f"was asked to stop by {by}; the checkpoint of step", asked, 30)
    job.end(75)
    end = RunEnd.read(job.run)
    if "resume with --resume runs/run" not in job.output or (end.status, end.exit_status) != ("stopped", 75):
        raise Mismatch(f"{end}:\n{job.output}")
    if "uncaught exception" in job.output or (job.run / "STOP").exists():
        raise Mismatch(f"a library was not shut down, or the request is still there:\n{job.output}")
    suite.check_resumes(job)
    return Row(f"{name} to the {target}", launcher, framework, reported - asked, None, 0)


class RedirectedJob(WatchedJob):
    """A job whose output a shell redirects."""

    redirection = ""

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        line = '"$@" ' + self.redirection + "; exit ${PIPESTATUS[0]}"
        return start(["bash", "-c", line, "bash", *command], self.folder, **self._environment())


def full_output(suite: Suite, launcher: str, framework: str) -> Row:
    """The job must end at the same weights, whatever becomes of its output."""
    where, redirection = suite.random.choice(sorted(REDIRECTIONS.items()))
    job = type("Job", (RedirectedJob,), {"redirection": redirection})(suite.new_folder(), launcher, framework)
    job.end(0)
    suite.check_weights(job)
    return Row(f"the launcher prints to {where}", launcher, framework)


def same_name(suite: Suite, launcher: str, framework: str) -> Row:
    """A second job with the same command, while the first one trains: it says so, and leaves the folder alone."""
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


def nan(suite: Suite, launcher: str, framework: str) -> Row:
    """A loss that is not finite on one rank."""
    job = WatchedJob(suite.new_folder(), launcher, framework, "nan")
    job.end(1)
    job.reported("rank 1: loss is not finite at step 5, in training rows", 0, 1)
    end = RunEnd.read(job.run)
    if (end.status, end.exit_status, end.rank) != ("failed", 1, 1) or "uncaught exception" in job.output:
        raise Mismatch(f"{end}:\n{job.output}")
    if checkpoints.newest(job.run)[1].position.step > EVERY:
        raise Mismatch("values that are not finite were saved")
    return Row("NaN on a rank", launcher, framework, state="ended, rank, step and images named")


def drift(suite: Suite, launcher: str, framework: str) -> Row:
    """A parameter of one rank changes in memory."""
    job = WatchedJob(suite.new_folder(), launcher, framework, "drift", options=["--check-sync", "1"])
    job.end(1)
    job.reported("after step 6: parameter dense2.bias of rank 1 differs from rank 0's", 0, 1)
    return Row("a parameter of a rank changed", launcher, framework, state="ended, parameter named")
