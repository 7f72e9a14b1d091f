"""launch srun --survive in a real Slurm: a step that is killed, and a node that fails.

It starts processes because it is Slurm that starts and ends the steps.
"""

from __future__ import annotations

import re
import sys

from support.cluster_jobs import LAUNCH
from support.jobs import ROOT, wait_for

PROGRAM = [sys.executable, str(ROOT / "tests" / "support" / "survivor.py")]


def test_a_killed_step_and_a_failed_node_do_not_end_the_job(slurm, tmp_path):
    """A killed rank starts again on its node; that of the failed node where the allocation has another task."""
    launch = [*LAUNCH, "srun", "-n", "2", "--survive", "--", *PROGRAM, str(tmp_path)]
    allocate = ["salloc", "--no-kill", "--nodes=2", "--ntasks-per-node=2", *launch]
    process = slurm.start(["sh", "-c", 'exec "$@" > output 2>&1', "sh", *allocate], tmp_path)

    def text():
        return (tmp_path / "output").read_text() if (tmp_path / "output").exists() else ""

    def until(*lines):
        for line in lines:
            wait_for(lambda line=line: re.search(f"^{line}", text(), re.M), 40, text)

    until(r"\[0\] member 1 \[0, 1\]")
    steps = slurm.run(["squeue", "--steps", "--noheader", "--format=%i %N"])[1].split()
    step = steps[steps.index("host2") - 1]
    slurm.run(["scancel", "--signal=KILL", step])
    until(r"\[0\] member 2 \[0\]", r"\[0\] member 3 \[0, 1\]", "hvdtrain: rank 1 on host2 joins; 2 ranks")
    assert slurm.run(["scontrol", "update", "nodename=host2", "state=down", "reason=test"])[0] == 0
    try:
        until(r"\[0\] member 4 \[0\]", r"\[0\] member 5 \[0, 1\]", "hvdtrain: rank 1 on host1 joins; 2 ranks")
    finally:
        slurm.run(["scontrol", "update", "nodename=host2", "state=resume"])
    (tmp_path / "end").touch()
    assert process.wait(30) == 0, text()
