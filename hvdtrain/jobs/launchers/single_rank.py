"""One rank of a job that survives lost ones: its agent is started by itself, on this host, by ssh or by srun.

horovodrun and mpirun would end all ranks with the first that is lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import Host, other_hosts, ssh
from hvdtrain.jobs.job import Job, LaunchSpec, agent_command, in_container, variables
from hvdtrain.jobs.places import Place
from hvdtrain.system import rank_info


def build_rank(job: Job, environment: Mapping[str, str], place: Place) -> LaunchSpec:
    """What starts the agent of a rank at its place."""
    here = build_here(job, environment, place, on_terminal=job.launcher == "local")
    if job.launcher == "srun":
        return here._replace(command=[*_srun(job, place.host), *here.command])
    if other_hosts([Host(place.host, 1)]):
        return here._replace(command=ssh(place.host, "sh"), remote=tuple(here.command))
    return here


def build_here(job: Job, environment: Mapping[str, str], place: Place, on_terminal: bool) -> LaunchSpec:
    """The agent of a rank on this host. on_terminal: whether rank 0 has the terminal, where there is one."""
    # Rank 0 shows a progress bar, which needs the terminal itself.
    terminal = place.rank == 0 and on_terminal and not job.output_dir and os.isatty(1) and os.isatty(2)
    flags = ["--gloo", *(["--survive"] if job.survival else []), *(["--on-terminal"] if terminal else [])]
    values = map(str, (place.rank, job.max_ranks, place.local_rank))
    identity = dict(zip(rank_info.VARIABLES[rank_info.LAUNCH], values, strict=True))
    given = {**variables(job, environment), **identity}
    return LaunchSpec(agent_command(job, *flags), given, place.rank, terminal)


def _srun(job: Job, node: str) -> list[str]:
    """A step of one task on a node of the allocation, which shares the node with the steps of other ranks.

    It has all cores of the node that the job has: with --cpus-per-task, several steps would get the same ones.
    """
    command = ["srun", "--overlap", "--nodes", "1", "--ntasks", "1", "--nodelist", node, "--mpi", "none"]
    command += ["--kill-on-bad-exit=0", "--unbuffered", "--cpu-bind", "none"]
    return [*command, *in_container(job)]


def check_survival(job: Job, environment: Mapping[str, str]) -> None:
    """Raise UserError for a job that cannot survive as it is asked to."""
    survival = job.survival
    assert survival
    if not 1 <= survival.min_ranks <= job.ranks <= job.max_ranks or survival.max_ranks not in (0, job.max_ranks):
        limits = f"--min-np {survival.min_ranks} --max-np {survival.max_ranks or job.ranks}"
        raise UserError(f"{limits}: -n {job.ranks} is not between them", "correct one of them")
    if job.launcher == "srun" and "SLURM_JOB_ID" not in environment:
        reason = "launch srun --survive starts a step for each rank, which needs an allocation"
        raise UserError(reason, "start it in one of salloc --no-kill, or with launch sbatch")
