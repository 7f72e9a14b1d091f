"""launch --survive: which ranks the launcher ends, replaces and adds, with a program that only prints memberships.

Needs processes: ranks that are killed and started again, and the memberships that reach their programs.
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest
from support.jobs import ROOT, PrintedJob, wait_for

PROGRAM = ROOT / "tests" / "support" / "survivor.py"
DEFECT = {"Failure": {"reason": "RuntimeError: a defect", "retry": None}}


class SurvivingJob(PrintedJob):
    """A job in a folder of its own."""

    def __init__(self, folder, *options, launcher="local", ranks=3):
        launch = [sys.executable, "-m", "hvdtrain", "launch", launcher, "-n", str(ranks), "--survive", *options]
        super().__init__(folder, [*launch, "--", sys.executable, str(PROGRAM), str(folder)])
        self.until(*(rf"\[{rank}\] member 1 \[{', '.join(map(str, range(ranks)))}\] {{}}" for rank in range(ranks)))

    def pid(self, rank):
        """Of the process that is the rank now."""
        return int(re.findall(rf"^\[{rank}\] pid ([0-9]+)", self.output, re.M)[-1])

    def kill(self, rank):
        os.kill(self.pid(rank), signal.SIGKILL)

    def say(self, rank, message):
        """Let the program of a rank say something to its agent."""
        written = self._folder / "message"
        written.write_text(json.dumps(message))
        written.rename(self._folder / f"say-{rank}")


@pytest.fixture
def start(tmp_path) -> Iterator:
    with contextlib.ExitStack() as jobs:

        def start(*options, **settings):
            job = SurvivingJob(tmp_path, *options, **settings)
            jobs.callback(job.process.wait)
            jobs.callback(job.process.kill)
            return job

        yield start


def wait_gone(pid):
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), 10)


def test_lost_ranks_are_left_out_at_once_and_join_again(start):
    """One that is killed, one that does not run, and one that fails by a defect; signals reach them afterwards."""
    job = start()
    job.kill(0)
    job.until(*(rf"\[{rank}\] member 2 \[1, 2\] {{0: 'was killed by SIGKILL'}}" for rank in (1, 2)))
    job.until(*(rf"\[{rank}\] member 3 \[1, 2, 0\] {{}}" for rank in range(3)))
    job.until(r"hvdtrain: rank 0 on \S+ was killed by SIGKILL; 2 ranks continue$")
    job.until(r"hvdtrain: rank 0 on \S+ joins; 3 ranks$")

    stopped = job.pid(1)
    os.kill(stopped, signal.SIGSTOP)
    job.say(0, {"NotRunning": {"rank": 1, "reason": "no heartbeat for 30 s"}})
    job.until(r"\[0\] member 4 \[2, 0\] {1: 'no heartbeat for 30 s'}", r"\[1\] member 5 \[2, 0, 1\] {}")
    wait_gone(stopped)

    job.say(2, DEFECT)
    job.until(r"\[0\] member 6 \[0, 1\] {2: 'RuntimeError: a defect'}", r"\[2\] member 7 \[0, 1, 2\] {}")
    pids = [job.pid(rank) for rank in range(3)]
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(30) == 128 + signal.SIGTERM
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_job_of_which_too_few_ranks_are_left_starts_again_and_then_ends(start):
    job = start("--min-np", "2", "--restarts", "1", ranks=2)
    first = job.pid(1)
    job.kill(1)
    job.until(r"hvdtrain: rank 1 on \S+ was killed by SIGKILL; ending the others$", "hvdtrain: restarting in 1 s")
    wait_for(lambda: job.output.count("member 1 [0, 1]") == 4 and job.pid(1) != first, 30, lambda: job.output)
    job.kill(1)
    assert job.process.wait(30) == 128 + signal.SIGKILL


def test_a_job_grows_and_shrinks_with_the_slots_of_its_hosts(start, tmp_path):
    """And ends by a failure that an option decides."""
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=2\n")
    job = start("--max-np", "3", "--hostfile", str(hostfile), launcher="horovodrun", ranks=2)
    hostfile.write_text("localhost slots=4\n")
    job.until(r"\[0\] member 2 \[0, 1, 2\] {}", r"hvdtrain: rank 2 on \S+ joins; 3 ranks")
    hostfile.write_text("localhost slots=2\n")
    job.until(r"\[0\] member 3 \[0, 1\] {2: '\S+ has no slot for it any more'}")
    job.say(1, {"Failure": {"reason": "labels are missing", "retry": False}})
    assert job.process.wait(30) == 1
    job.until(r"hvdtrain: rank 1 on \S+: labels are missing; ending the others$")


def test_a_host_with_wrong_bits_is_not_used_again(start):
    job = start(ranks=2)
    excluded = job.pid(1)
    job.say(0, {"Excluded": {"rank": 1, "reason": "it computed wrong bits"}})
    job.until(r"\[0\] member 2 \[0\] {1: 'it computed wrong bits'}")
    wait_gone(excluded)
    time.sleep(1)  # a replacement would register in this time
    assert job.end() == 0
    assert "member 3" not in job.output
    assert job.pid(1) == excluded
