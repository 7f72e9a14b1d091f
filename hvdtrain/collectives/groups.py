"""The processes of a job: alone, Horovod's, PyTorch's or MPI's; `ring` has our own.

Framework-neutral: what belongs to a framework is handed in.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info


class SingleProcess:
    """One process: every collective is the identity."""

    rank, size, local_rank = 0, 1, 0

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        pass


class HorovodGroup:
    """Horovod's processes, for the module `horovod.torch`, `horovod.mxnet` or `horovod.tensorflow`.

    to_tensor, to_numpy: the framework's conversions of a float64 vector on the host.
    """

    def __init__(self, hvd: ModuleType, to_tensor: Callable[[np.ndarray], Any], to_numpy: Callable[[Any], np.ndarray]):
        hvd.init()
        self._hvd, self._to_tensor, self._to_numpy = hvd, to_tensor, to_numpy
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self._check_promise()

    def _check_promise(self) -> None:
        """Horovod built without the launcher's controller leaves every process believing that it is alone."""
        promised = rank_info.detect()
        # The size of an elastic job changes, and its variables do not.
        if promised.size == self.size or rank_info.ELASTIC in os.environ:
            return
        if promised.launcher in ("torchrun", "TF_CONFIG"):
            raise UserError(
                f"{promised.launcher} started {promised.size} processes, and Horovod does not hear of that: "
                "start --strategy horovod by horovodrun or mpirun, or choose another strategy (--strategy help)"
            )
        by_gloo = "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ or promised.launcher == "horovodrun"
        missing = "Gloo" if by_gloo else "MPI"
        alone = "each process thinks it is alone" if self.size == 1 else f"Horovod sees {self.size}"
        raise UserError(
            f"{promised.launcher} started {promised.size} processes but {alone}: Horovod was built without "
            f"{missing}, or was told another controller; see horovodrun --check-build, and make setup mends it"
        )

    def sum(self, values: np.ndarray) -> np.ndarray:
        tensor = self._to_tensor(np.asarray(values, np.float64))
        return self._to_numpy(self._hvd.allreduce(tensor, name="hvdtrain.sum", op=self._hvd.Sum))

    def gather(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name="hvdtrain.gather")

    def broadcast(self, value: Any) -> Any:
        # Not broadcast_object: MXNet's does not wait on rank 0, so that a second one meets the first by name and hangs.
        return self.gather(value if self.rank == 0 else None)[0]

    def close(self) -> None:
        self._hvd.shutdown()


def check_adasum(hvd: ModuleType) -> None:
    """Raise UserError unless this job can run Adasum: over MPI or NCCL, on a power of two ranks."""
    if not hvd.mpi_enabled() and not hvd.nccl_built():
        raise UserError("--op adasum: Gloo has no Adasum; start by horovodrun --mpi or mpirun")
    if hvd.size() & (hvd.size() - 1):
        raise UserError(f"--op adasum: it needs 2, 4, 8, ... ranks, and these are {hvd.size()}")


class TorchDistributedGroup:
    """The processes of torch.distributed, for the module of that name and a backend (gloo, nccl)."""

    def __init__(self, dist: ModuleType, backend: str) -> None:
        place = rank_info.detect()
        self._dist = dist
        self.rank, self.size, self.local_rank = place.rank, place.size, place.local_rank
        self._meet(backend)

    def _meet(self, backend: str) -> None:
        if self.size == 1:  # needs no launcher: nobody to meet
            self._dist.init_process_group(backend, store=self._dist.HashStore(), rank=0, world_size=1)
            return
        if rank_info.ADDRESS in os.environ:  # torchrun's own store, or that of launch local
            rank_info.rendezvous()  # says what is missing better than torch does
            meeting = "env://"
        else:
            meeting = "tcp://{}:{}".format(*rank_info.rendezvous())
        self._dist.init_process_group(backend, init_method=meeting, rank=self.rank, world_size=self.size)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.sum(self.gather(np.asarray(values, np.float64)), axis=0)

    def gather(self, value: Any) -> list[Any]:
        gathered = [None] * self.size
        self._dist.all_gather_object(gathered, value)
        return gathered

    def broadcast(self, value: Any) -> Any:
        values = [value]
        self._dist.broadcast_object_list(values, src=0)
        return values[0]

    def close(self) -> None:
        self._dist.barrier()
        atexit.register(_leave)


def _leave() -> None:
    """End the process without PyTorch's destructors: Gloo's threads now and then abort in them, after all is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_value") else 0)  # it is there where an exception was met by nobody


class MPIGroup:
    """MPI's processes, by mpi4py; `allreduce` is for gradients."""

    def __init__(self) -> None:
        from mpi4py import MPI as mpi

        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.local_rank = self._world.Split_type(mpi.COMM_TYPE_SHARED).Get_rank()
        promised = rank_info.detect()
        if promised.size != self.size:
            raise UserError(
                f"{promised.launcher} started {promised.size} processes, and MPI sees {self.size}: "
                "start --strategy mpi by mpirun, or by srun where the site's MPI has its plug-in"
            )

    def allreduce(self, values: np.ndarray) -> None:
        """Add up `values` over all ranks, in place: contiguous, any numeric type; the buffer itself is sent."""
        self._world.Allreduce(self._mpi.IN_PLACE, values)

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.array(values, np.float64)
        self.allreduce(total)
        return total

    def gather(self, value: Any) -> list[Any]:
        return self._world.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._world.bcast(value)

    def close(self) -> None:
        self._world.Barrier()


def single_process(strategy: str) -> SingleProcess:
    """A group of one. Raises UserError where a launcher started several, which would all train apart."""
    promised = rank_info.detect()
    if promised.size > 1:
        raise UserError(
            f"{promised.launcher} started {promised.size} processes, and with --strategy {strategy} each would "
            "train alone; choose a strategy of several processes (--strategy help), or start one"
        )
    return SingleProcess()
