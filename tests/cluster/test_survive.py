"""launch --survive on several hosts and in a real Slurm: lost ranks, hosts and nodes that fail or are added.

It starts processes because ranks on other hosts end with their host's network or by a signal, or Slurm ends them.
"""

from __future__ import annotations

import os
import re
import signal
import sys

from support.cluster_jobs import LAUNCH, ranks_on
from support.jobs import ROOT, PrintedJob, wait_for

PROGRAM = [sys.executable, str(ROOT / "tests" / "support" / "survivor.py")]


def begin(hosts, folder, *options):
    """A job of the survivor program, started on host1."""
    command = [*LAUNCH, "horovodrun", "--interface", "eth0", "--survive", *options, "--", *PROGRAM, str(folder)]
    return PrintedJob(folder, command, lambda words, folder: hosts.start("host1", words, folder, SECRET_TOKEN="x y"))


def test_a_rank_of_another_host_is_replaced(hosts, tmp_path):
    """By ssh, without variables on its command line, and nothing stays behind."""
    job = begin(hosts, tmp_path, "-n", "3", "-H", "host1:1,host2:2", "--env", "SECRET_TOKEN")
    job.until(r"\[0\] member 1 \[0, 1, 2\]")
    agents = [line for line in hosts.processes("host2").values() if "hvdtrain.jobs.agent" in line]
    assert agents and "x y" not in "".join(agents)
    assert "x y" not in "".join(hosts.processes("host1").values())
    os.kill(max(ranks_on(hosts, "host2", " ".join(PROGRAM))), signal.SIGKILL)
    job.until(r"\[0\] member 2 \[0, [12]\]", r"\[0\] member 3 \[0, [12], [12]\]")
    assert re.search(r"^hvdtrain: rank [12] on host2 was killed by SIGKILL; 2 ranks continue$", job.output, re.M)
    assert job.end() == 0, job.output
    assert not any(hosts.programs("hvdtrain").values())
    assert not any(hosts.programs("survivor").values())


def test_a_host_without_a_network_is_left_out_and_comes_back(hosts, tmp_path):
    """The other ranks know it soon, its own ranks end, and one starts there when it can be reached again."""
    job = begin(hosts, tmp_path, "-n", "2", "-H", "host1:1,host2:1")
    job.until(r"\[0\] member 1 \[0, 1\]")
    hosts.cable("host2", False)
    try:
        job.until(r"\[0\] member 2 \[0\]", seconds=12)
        wait_for(lambda: not ranks_on(hosts, "host2", " ".join(PROGRAM)), 15)
    finally:
        hosts.cable("host2", True)
    job.until(r"\[0\] member 3 \[0, 1\]", seconds=90)
    assert job.end() == 0, job.output


def test_a_job_grows_to_a_host_of_its_hostfile(hosts, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("host1 slots=1\n")
    job = begin(hosts, tmp_path, "-n", "1", "--max-np", "2", "--hostfile", "hosts")
    job.until(r"\[0\] member 1 \[0\]")
    hostfile.write_text("host1 slots=1\nhost3 slots=1\n")
    job.until(r"\[1\] member 2 \[0, 1\]", "hvdtrain: rank 1 on host3 joins; 2 ranks")
    assert job.end() == 0, job.output


def test_a_killed_step_and_a_failed_node_do_not_end_the_job(slurm, tmp_path):
    """A killed rank starts again on its node; that of the failed node where the allocation has another task."""
    launch = [*LAUNCH, "srun", "-n", "2", "--survive", "--", *PROGRAM, str(tmp_path)]
    allocate = ["salloc", "--no-kill", "--nodes=2", "--ntasks-per-node=2", *launch]
    job = PrintedJob(tmp_path, allocate, slurm.start)
    job.until(r"\[0\] member 1 \[0, 1\]", seconds=40)
    steps = slurm.run(["squeue", "--steps", "--noheader", "--format=%i %N"])[1].split()
    slurm.run(["scancel", "--signal=KILL", steps[steps.index("host2") - 1]])
    rejoined = "hvdtrain: rank 1 on host{} joins; 2 ranks"
    job.until(r"\[0\] member 2 \[0\]", r"\[0\] member 3 \[0, 1\]", rejoined.format(2), seconds=40)
    assert slurm.run(["scontrol", "update", "nodename=host2", "state=down", "reason=test"])[0] == 0
    try:
        job.until(r"\[0\] member 4 \[0\]", r"\[0\] member 5 \[0, 1\]", rejoined.format(1), seconds=40)
    finally:
        slurm.run(["scontrol", "update", "nodename=host2", "state=resume"])
    assert job.end() == 0, job.output
