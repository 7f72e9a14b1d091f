"""launch srun: Slurm's launcher, with Gloo alone or with an MPI that Slurm starts (--mpi pmix)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from hvdtrain.jobs.job import Job
from hvdtrain.jobs.launchers.settings import CORES_PER_TASK, LaunchSpec, agent_command, variables


def build(
    job: Job, environment: Mapping[str, str], control: Sequence[str] = (), python: str = sys.executable
) -> list[LaunchSpec]:
    """One srun for all ranks; it passes on all variables itself, so `control` needs no option."""
    command = ["srun", "--ntasks", str(job.ranks)]
    command += ["--nodes", str(job.nodes)] if job.nodes else []
    # The agents end the other ranks, sooner than srun does, and the message names the rank that failed first.
    command += ["--mpi", job.mpi or "none", "--kill-on-bad-exit=0", "--unbuffered"]
    if CORES_PER_TASK in environment:  # sbatch's, which srun does not inherit since Slurm 22.05
        command += ["--cpus-per-task", environment[CORES_PER_TASK]]
    if job.container and not job.container.endswith(".sif"):
        command += [f"--container-image={job.container}", f"--container-mounts={os.getcwd()}", "--container-workdir=."]
    gloo = () if job.mpi else ("--gloo",)
    return [LaunchSpec([*command, *agent_command(job, *gloo, python=python)], variables(job, environment))]
