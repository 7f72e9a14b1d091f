"""All launchers, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hvdtrain.jobs.job import Job
from hvdtrain.jobs.launchers import elastic, horovodrun, local, mpirun, srun
from hvdtrain.jobs.launchers.settings import LaunchSpec


class Build(Protocol):
    """Makes what starts a job: one LaunchSpec for each rank, or one for all of them.

    environment: the variables of the process that launches.
    control: names of the variables, set later, by which the agents find and trust the supervisor; empty without one.
    """

    def __call__(self, job: Job, environment: Mapping[str, str], control: Sequence[str] = ()) -> list[LaunchSpec]: ...


LAUNCHERS: dict[str, Build] = {
    "local": local.build,
    "horovodrun": horovodrun.build,
    "mpirun": mpirun.build,
    "srun": srun.build,
}


def build(launcher: str, job: Job, environment: Mapping[str, str], control: Sequence[str] = ()) -> list[LaunchSpec]:
    """The command lines that start a job. Raises UserError for what the launcher cannot do."""
    return (elastic.build if job.elastic else LAUNCHERS[launcher])(job, environment, control)
