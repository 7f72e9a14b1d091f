"""Horovod's processes as a group, the same for its three frameworks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain.collectives.start_limit import LIBRARY_TIMEOUT_S
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.system import crashes, rank_info


class HorovodGroup:
    """Horovod's processes, for the module `horovod.torch`, `horovod.mxnet` or `horovod.tensorflow`.

    to_tensor, to_numpy: the framework's conversions of a float64 or uint8 vector on the host. Raises TrainingError if
    Horovod cannot connect the processes, UserError if it sees another number of them than the launcher started.
    """

    def __init__(self, hvd: ModuleType, to_tensor: Callable[[np.ndarray], Any], to_numpy: Callable[[Any], np.ndarray]):
        _wait_for_slow_ranks()
        try:
            hvd.init()
        except ValueError as error:
            raise TrainingError(
                f"Horovod cannot connect the ranks ({error})", "see how the other ranks ended"
            ) from None
        crashes.end_at_once()
        self._hvd, self._to_tensor, self._to_numpy = hvd, to_tensor, to_numpy
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        _check_size(self.size)
        self.controller = "MPI" if hvd.mpi_enabled() else "Gloo"

    def sum(self, values: np.ndarray) -> np.ndarray:
        tensor = self._to_tensor(np.asarray(values, np.float64))
        return self._to_numpy(self._hvd.allreduce(tensor, name="hvdtrain.sum", op=self._hvd.Sum))

    def gather(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name="hvdtrain.gather")

    def broadcast(self, value: Any) -> Any:
        # Not broadcast_object: MXNet's returns on rank 0 before it is complete, so that a second call with the same
        # name hangs.
        return self.gather(value if self.rank == 0 else None)[0]

    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        tensor = self._to_tensor(values)  # MXNet reads it after the call, so that it may not be freed before
        values[:] = self._to_numpy(self._hvd.broadcast(tensor, root, name="hvdtrain.broadcast"))

    def close(self) -> None:
        if not self._hvd.mpi_enabled():  # a process can initialize MPI only once; Horovod ends it when the process does
            self._hvd.shutdown()

    def require_adasum(self) -> None:
        """Raise UserError unless this job can run Adasum: over MPI or NCCL, with a power of two ranks."""
        if not self._hvd.mpi_enabled() and not self._hvd.nccl_built():
            raise UserError("--op adasum: Horovod has no Adasum over Gloo", "start by horovodrun --mpi or mpirun")
        if self.size & (self.size - 1):
            raise UserError(f"--op adasum: {self.size} ranks are not a power of two", "start 2, 4, 8, ... ranks")


def _wait_for_slow_ranks() -> None:
    """Let Gloo wait longer than its 30 s, unless the user has set its limit; a lost rank is noticed otherwise.

    In an elastic job Gloo's timer must find lost hosts.
    """
    launchers_own = str(math.ceil(rank_info.start_timeout_s()))
    if rank_info.ELASTIC not in os.environ and os.environ.get(rank_info.GLOO_TIMEOUT, launchers_own) == launchers_own:
        os.environ[rank_info.GLOO_TIMEOUT] = str(LIBRARY_TIMEOUT_S)


def _check_size(size: int) -> None:
    """Horovod built without the launcher's controller leaves every process believing that it is the only one."""
    launched = rank_info.detect()
    # The size of an elastic job changes, but its variables do not.
    if launched.size == size or rank_info.ELASTIC in os.environ:
        return
    if launched.launcher in ("torchrun", "TF_CONFIG"):
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but Horovod cannot see them",
            "start --strategy horovod by horovodrun or mpirun, or choose another strategy (--strategy help)",
        )
    by_gloo = "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ or launched.launcher == "horovodrun"
    missing = "Gloo" if by_gloo else "MPI"
    seen = "each process sees only itself" if size == 1 else f"Horovod sees {size}"
    raise UserError(
        f"{launched.launcher} started {launched.size} processes, but {seen}: Horovod was built without {missing}, or "
        "HOROVOD_CONTROLLER selects another controller",
        "see horovodrun --check-build; make setup builds Horovod with both",
    )
