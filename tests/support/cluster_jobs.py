"""Jobs that tests start on several hosts and in Slurm."""

from __future__ import annotations

import sys

import pytest

from support.cluster import Hosts

QUICK = ("--max-steps", "6", "--lr", "0.02", "--device", "cpu")
LAUNCH = [sys.executable, "-m", "hvdtrain", "launch"]
SLEEP = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def program(framework: str, *options: str) -> list[str]:
    return ["python", "-m", f"hvdtrain.{framework}_lenet", *QUICK, "--name", "run", *options]


def skip_if_the_folder_has_a_space(by: list[str]) -> None:
    if " " in sys.prefix and ("mpirun" in by or by == ["horovodrun"]):
        pytest.skip(
            "Open MPI, and horovodrun without --interface, cannot start on other hosts in a folder with a space"
        )


def ranks_on(hosts: Hosts, name: str, program: str = "python -c import os, signal") -> list[int]:
    """The processes of the ranks, without their agents."""
    return [pid for pid, line in hosts.processes(name).items() if line.startswith(program)]
