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
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


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
