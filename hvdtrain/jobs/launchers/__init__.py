"""The launchers, by name; `local` and `srun` are here, the others in files of their own.

Each makes command lines from a `Job`, and never strings for a shell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from hvdtrain.jobs.job import CORES_PER_TASK, Job, LaunchSpec, agent_command, in_container, variables
from hvdtrain.jobs.launchers import horovodrun, mpirun
from hvdtrain.jobs.launchers.single_rank import build_rank
from hvdtrain.jobs.places import Places


def build_ranks(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """launch local, and jobs that survive: one process for each rank, without MPI or horovodrun."""
    return [build_rank(job, environment, place) for place in Places.of_job(job).take(0)]


def build_srun(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """launch srun: one srun for all ranks, with Gloo alone or with an MPI that Slurm starts (--mpi pmix)."""
    command = ["srun", "--ntasks", str(job.ranks)]
    command += ["--nodes", str(job.nodes)] if job.nodes else []
    # The agents end the other ranks, sooner than srun does, and the message names the rank that failed first.
    command += ["--mpi", job.mpi or "none", "--kill-on-bad-exit=0", "--unbuffered"]
    if CORES_PER_TASK in environment:  # sbatch's, which srun does not inherit since Slurm 22.05
        command += ["--cpus-per-task", environment[CORES_PER_TASK]]
    command += in_container(job)
    gloo = () if job.mpi else ("--gloo",)
    return [LaunchSpec([*command, *agent_command(job, *gloo)], variables(job, environment))]


class Launcher(NamedTuple):
    """An entry of LAUNCHERS."""

    build: Callable[[Job, Mapping[str, str]], list[LaunchSpec]]
    """Makes what starts a job: one LaunchSpec for each rank, or one for all of them. It gets the variables of the
    process that launches, with CONTROL_VARIABLES if there is a supervisor."""
    about: str
    options: tuple[str, ...] = ()
    """The kinds of options that it has beyond those of all launchers, as config/job_options.py names them."""
    in_allocation: Literal["", "named", "filled", "spread"] = ""
    """How it gets to the hosts of a Slurm allocation: they are named to it; or it knows them, and fills one after the
    other, or spreads the ranks over all of them. Empty: it stays on this host."""


LAUNCHERS = {
    "local": Launcher(build_ranks, "all ranks on this host; needs neither MPI nor horovodrun", ()),
    "horovodrun": Launcher(
        horovodrun.build,
        "Horovod's launcher, with Gloo, on this host or on hosts reached by ssh",
        ("hosts", "growth"),
        in_allocation="named",
    ),
    "mpirun": Launcher(
        mpirun.build,
        "Open MPI's launcher, on this host, on hosts reached by ssh, or in a Slurm allocation",
        ("hosts", "growth", "container"),
        in_allocation="filled",
    ),
    "srun": Launcher(
        build_srun,
        "Slurm's launcher, in an allocation or in one of its own: with Gloo, or with MPI by --mpi",
        ("growth", "container", "slurm"),
        in_allocation="spread",
    ),
}


def build(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """The command lines that start a job. Raises UserError for what the launcher cannot do."""
    return (build_ranks if job.survives else LAUNCHERS[job.launcher].build)(job, environment)
