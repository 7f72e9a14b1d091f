"""One rank whose agent is started by itself: with `launch local`, and in a job that survives lost ranks.

horovodrun and mpirun would end all ranks with the first that is lost: there it is started by ssh or by srun.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdtrain.jobs.hosts import Host, other_hosts, ssh
from hvdtrain.jobs.job import Job, LaunchSpec, agent_command, in_container, variables
from hvdtrain.jobs.places import Place
from hvdtrain.system import rank_info


def build_rank(job: Job, environment: Mapping[str, str], place: Place) -> LaunchSpec:
    """What starts the agent of a rank at its place."""
    # Rank 0 shows a progress bar, which needs the terminal itself.
    terminal = place.rank == 0 and job.launcher == "local" and not job.output_dir and os.isatty(1) and os.isatty(2)
    flags = ["--gloo", *(["--survive"] if job.survives else []), *(["--on-terminal"] if terminal else [])]
    values = map(str, (place.rank, job.max_ranks, place.local_rank))
    identity = dict(zip(rank_info.VARIABLES[rank_info.LAUNCH], values, strict=True))
    here = LaunchSpec(agent_command(job, *flags), {**variables(job, environment), **identity}, place.rank, terminal)
    if job.launcher == "srun":
        return here._replace(command=[*_srun(job, place.host), *here.command])
    if other_hosts([Host(place.host, 1)]):
        return here._replace(command=ssh(place.host, "sh"), remote=tuple(here.command))
    return here


def _srun(job: Job, node: str) -> list[str]:
    """A step of one task on a node of the allocation, which shares the node with the steps of other ranks.

    It has all cores of the node that the job has: with --cpus-per-task, several steps would get the same ones.
    """
    command = ["srun", "--overlap", "--nodes", "1", "--ntasks", "1", "--nodelist", node, "--mpi", "none"]
    command += ["--kill-on-bad-exit=0", "--unbuffered", "--cpu-bind", "none"]
    return [*command, *in_container(job)]
