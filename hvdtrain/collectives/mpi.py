"""MPI's processes as a group."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdtrain.collectives.communication_time import CommunicationTime
from hvdtrain.errors import UserError
from hvdtrain.system import rank_info
from hvdtrain.system.phases import collective

MOST_ELEMENTS = 1 << 30
"""Of a message: MPI counts them in 32 bits."""


class MPIGroup(CommunicationTime):
    """MPI's processes, through mpi4py; `allreduce` is for gradients.

    Raises UserError if MPI sees another number of processes than the launcher started.
    """

    controller = ""

    def __init__(self) -> None:
        super().__init__()
        from mpi4py import MPI as mpi

        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.local_rank = self._world.Split_type(mpi.COMM_TYPE_SHARED).Get_rank()
        launched = rank_info.detect()
        if launched.size != self.size:
            raise UserError(
                f"{launched.launcher} started {launched.size} processes, but MPI sees {self.size}",
                "start --strategy mpi by mpirun, or by srun if Slurm has the plug-in of this MPI",
            )

    def allreduce(self, values: np.ndarray) -> None:
        """Sum `values` over all ranks, in place: contiguous, any numeric type; sent without a copy."""
        with self.communicating:
            for start in range(0, len(values), MOST_ELEMENTS):
                self._world.Allreduce(self._mpi.IN_PLACE, values[start : start + MOST_ELEMENTS])

    @collective
    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.array(values, np.float64)
        self.allreduce(total)
        return total

    @collective
    def gather(self, value: Any) -> list[Any]:
        return self._world.allgather(value)

    @collective
    def broadcast(self, value: Any) -> Any:
        return self._world.bcast(value)

    @collective
    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        self._world.Bcast(values, root)

    @collective
    def close(self) -> None:
        self._world.Barrier()
