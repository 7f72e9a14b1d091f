"""launch mpirun: Open MPI's launcher, on this host, on hosts reached by ssh, or in a Slurm allocation."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from hvdtrain.jobs.job import Job
from hvdtrain.jobs.launchers import open_mpi
from hvdtrain.jobs.launchers.settings import LaunchSpec, agent_command, passed_on, variables

NOT_EXPORTED = re.compile(
    r"HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|SSH_AUTH_SOCK|KRB5CCNAME|(OMPI|PMIX|PRTE|SLURM|SLURMD|SBATCH|SALLOC|SRUN)_\w+"
)
"""Variables that each host sets for itself, or that mpirun passes on anyway."""


def build(
    job: Job, environment: Mapping[str, str], control: Sequence[str] = (), python: str = sys.executable
) -> list[LaunchSpec]:
    """One mpirun for all ranks. Ranks are not bound to cores, so that Horovod's own thread has one, too."""
    own = variables(job, environment)
    on_other_hosts = job.hosts or "SLURM_JOB_ID" in environment
    names = sorted({*passed_on(environment), *own}) if on_other_hosts else []
    names = [*(name for name in names if not NOT_EXPORTED.fullmatch(name) and name not in control), *control]
    exported = [word for name in names for word in ("-x", name)]
    return [LaunchSpec([*base_command(job, environment), *exported, *agent_command(job, python=python)], own)]


def base_command(job: Job, environment: Mapping[str, str]) -> list[str]:
    """mpirun and its options, before the program."""
    command = ["mpirun", *open_mpi.as_root(job), *open_mpi.without_ssh(job, environment), "-np", str(job.ranks)]
    command += ["-H", open_mpi.listed(job.hosts)] if job.hosts else []
    command += ["--oversubscribe"] if job.oversubscribe or (not job.hosts and job.crowded) else []
    command += ["--bind-to", "none", "--map-by", "slot", *open_mpi.yielding(job), *open_mpi.prefix(job)]
    return [*command, *open_mpi.ssh_access(job), *open_mpi.rank_interfaces(job), *open_mpi.daemon_interfaces(job)]


def mpirun_here(ranks: int) -> list[str]:
    """mpirun and its options for ranks on this host."""
    return base_command(Job((), ranks), os.environ)
