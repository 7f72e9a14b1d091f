"""A job of one rank in which one process gets a signal in one phase, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.jobs import ROOT, PrintedJob, running, start, wait_for

STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
CASES = {
    "launcher": ("before", "running", "ending"),
    "agent": ("before", "running", "ending"),
    "program": ("running", "ending"),
}
"""The processes of a job, and the phases in which each is there; `before`: before the agent connects."""
LATE_AGENT = """
import os, time
if b"hvdtrain.jobs.agent" in open("/proc/self/cmdline", "rb").read():
    with open("agent", "w") as file:
        file.write(str(os.getpid()))
    while not os.path.exists("go"):
        time.sleep(0.02)
"""
PROGRAM = """
import os, signal, subprocess, sys, time
def stop(*_):
    os.write(1, b"ending\\n")
    time.sleep(0.5)
    sys.exit(75)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, f"running {os.getpid()} {child.pid}\\n".encode())
while True:
    time.sleep(0.1)
"""


class SignaledJob(NamedTuple):
    """How the launcher ended (None: it did not), what was printed, and the processes that were left."""

    status: int | None
    output: str
    left: list[int]

    @property
    def problem(self) -> str:
        """What is wrong in each case; empty where nothing is."""
        if self.status is None:
            return "the launcher did not end"
        own = "\n".join(line for line in self.output.splitlines() if not line.startswith("[0] "))
        if "Traceback" in own or "hvdtrain:  " in own:
            return self.output
        return f"{len(self.left)} processes were left" if self.left else ""


def run_signaled(folder: Path, process: str, phase: str, number: int) -> SignaledJob:
    """Run the job; one whose process goes on after the signal is stopped by SIGTERM."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LATE_AGENT)
    if phase != "before":
        (folder / "go").touch()
    with _launched(folder) as job:
        launcher, agent = job.process, folder / "agent"
        wait_for(lambda: agent.exists() and agent.read_text(), 60)
        pids = {"launcher": launcher.pid, "agent": int(agent.read_text())}
        if phase != "before":
            job.until(r"\[0\] running \d+ \d+\n", seconds=60)
            running_line = next(line for line in job.output.splitlines() if line.startswith("[0] running"))
            pids["program"], pids["child"] = map(int, running_line.split()[2:])
        if phase == "ending":
            launcher.terminate()
            job.until(r"\[0\] ending", seconds=60)
        with contextlib.suppress(ProcessLookupError):  # a job that ends may have done so meanwhile
            os.kill(pids[process], number)
            if number in STOPPING:
                time.sleep(0.2)
                os.kill(pids[process], signal.SIGCONT)
        (folder / "go").touch()
        status = _end(launcher)
        left = _left(pids.values())
    return SignaledJob(status, job.output, left)


@contextlib.contextmanager
def _launched(folder: Path) -> Iterator[PrintedJob]:
    program = [sys.executable, "-S", "-c", PROGRAM]
    command = [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", "1", "--", *program]
    job = PrintedJob(folder, command, functools.partial(start, PYTHONPATH=f"{folder}{os.pathsep}{ROOT}"))
    try:
        yield job
    finally:
        job.process.kill()
        job.process.wait()


def _end(launcher: subprocess.Popen[str]) -> int | None:
    for wait_s in (1.5, 25):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launcher.wait(wait_s)
        launcher.terminate()
    return None


def _left(pids: Iterator[int]) -> list[int]:
    """The processes that still run after some seconds, which are ended."""
    deadline = time.monotonic() + 10
    left = list(pids)
    while (left := [pid for pid in left if running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left
