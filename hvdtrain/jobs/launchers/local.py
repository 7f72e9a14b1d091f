"""launch local: hvdtrain starts each rank on this host itself, without MPI or horovodrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from hvdtrain.jobs.job import Job
from hvdtrain.jobs.launchers.settings import LaunchSpec, agent_command, variables
from hvdtrain.system import rank_info


def build(
    job: Job, environment: Mapping[str, str], control: Sequence[str] = (), python: str = sys.executable
) -> list[LaunchSpec]:
    """One process for each rank. It inherits all variables, so `control` needs no option."""
    return [_one_rank(job, environment, rank, python) for rank in range(job.ranks)]


def _one_rank(job: Job, environment: Mapping[str, str], rank: int, python: str) -> LaunchSpec:
    # Rank 0 shows a progress bar, which needs the terminal itself.
    on_terminal = rank == 0 and not job.output_dir and os.isatty(1) and os.isatty(2)
    flags = ["--gloo", *(["--on-terminal"] if on_terminal else [])]
    identity = zip(rank_info.VARIABLES[rank_info.LAUNCH], map(str, (rank, job.ranks, rank)), strict=True)
    command = agent_command(job, *flags, python=python)
    return LaunchSpec(command, {**variables(job, environment), **dict(identity)}, rank, on_terminal)
