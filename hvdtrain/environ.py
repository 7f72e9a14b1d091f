"""Who am I, by the launcher's word: one table of environment variables, read without importing anything.

Horovod's own variables come first: under `horovodrun` inside a Slurm job every rank inherits the batch node's
SLURM_* variables, and those would lie.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from hvdtrain.errors import UserError


class Place(NamedTuple):
    """What the launcher promised this process."""

    launcher: str
    rank: int
    size: int
    local_rank: int


# launcher: the variables that hold rank, size and local rank
VARIABLES = {
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "launch local": ("HVDTRAIN_RANK", "HVDTRAIN_SIZE", "HVDTRAIN_LOCAL_RANK"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


# What a program needs that finds its neighbours itself: rank 0's address and, against callers that are none, a word
# that only this job knows.
ADDRESS, PORT, TOKEN = "MASTER_ADDR", "MASTER_PORT", "HVDTRAIN_TOKEN"


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """This process's place in its job; a process of its own, rank 0 of 1, where no launcher left a word.

    Raises UserError where the variables are no numbers.
    """
    for launcher, names in VARIABLES.items():
        rank, size, local_rank = (environment.get(name) for name in names)
        if rank is not None and size is not None:
            try:
                return Place(launcher, int(rank), int(size), int(local_rank or 0))
            except ValueError:
                raise UserError(
                    f"{names[0]}={rank} {names[1]}={size} {names[2]}={local_rank} are no whole numbers: "
                    f"unset them, or start by {launcher}"
                ) from None
    return Place("none", 0, 1, 0)


def rendezvous(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Address and port where rank 0 waits for the other ranks.

    The port is the one above MASTER_PORT, on which torchrun itself listens. Raises UserError where no launcher told.
    """
    address, port = environment.get(ADDRESS), environment.get(PORT, "")
    if not address or not port.isdecimal():
        raise UserError(
            f"{place(environment).launcher} gave no {ADDRESS} and {PORT}, where rank 0 can be met: "
            "start by python -m hvdtrain launch local or torchrun, or set both on all ranks"
        )
    return address, int(port) + 1


def token(environment: Mapping[str, str] = os.environ) -> str:
    """The word by which the ranks of a job know each other; empty where the launcher gave none."""
    return environment.get(TOKEN, "")
