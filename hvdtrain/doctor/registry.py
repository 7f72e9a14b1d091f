"""The list of all checks. A new check goes into a file of `checks/`; a new file, into `MODULES`."""

from __future__ import annotations

from hvdtrain.doctor.check import Check, checks_of
from hvdtrain.doctor.checks import (
    allreduce,
    gpu,
    horovod,
    job,
    job_allreduce,
    machine,
    mpi,
    network,
    requirements,
    software,
    stack,
    storage,
    variables,
)

MODULES = (
    stack,
    software,
    requirements,
    horovod,
    mpi,
    allreduce,
    gpu,
    machine,
    storage,
    network,
    variables,
    job,
    job_allreduce,
)
"""In the order in which checks run and are listed; those of the whole job come last."""
CHECKS: tuple[Check, ...] = tuple(one for module in MODULES for one in checks_of(module))
QUICK = ("python", "numpy", "variables", "threads", "shm", "memory", "limits", "interfaces")
"""Checks that start no process and take no time."""
RENAMED = {"alike": "identical"}
"""Former names of checks, accepted for one release."""
