"""Groups of processes whose library needs no framework: a single one, MPI's, and those of torch.distributed."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from hvdtrain.collectives.limits import LIBRARY_TIMEOUT_S
from hvdtrain.errors import UserError
from hvdtrain.interfaces.combining import Packing
from hvdtrain.interfaces.strategy import Group
from hvdtrain.system import rank_info
from hvdtrain.system.phases import collective

T = TypeVar("T")
SAME_CALLS = "let all ranks make the same calls; leave a training loop on every rank after the same step"
MAX_ELEMENTS = 1 << 30
"""Of a message of MPI, which counts them in 32 bits."""


def by_rank(group: Group, values: Sequence[T]) -> list[T | None]:
    """Values that are by position in the group as a list by rank, as records have them; None for ranks that are not
    there.
    """
    places = dict(zip(group.ranks, values, strict=True))
    return [places.get(rank) for rank in range(max(places) + 1)]


class SingleProcess(Group):
    """One process: every collective is the identity."""


def single_process(strategy: str) -> SingleProcess:
    """A group of one, for a strategy that trains in one process.

    Raises UserError if a launcher started several processes: each of them would train alone.
    """
    launched = rank_info.detect()
    if launched.size > 1:
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but with --strategy {strategy} each would "
            "train alone",
            "choose a strategy for several processes (--strategy help), or start one process; "
            f"unset {launched.source} if it is that of another job",
        )
    return SingleProcess()


class Stopwatch:
    """Seconds spent inside its `with` blocks, of one thread at a time; another thread may read them."""

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = 0.0, None
        """Seconds of complete blocks, and when the present one was entered: one value, so that a reader sees both."""

    def __enter__(self) -> None:
        self._state = self._state[0], time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._state = self.seconds, None

    def add(self, seconds: float) -> None:
        """Add what was measured in another way, outside of a block."""
        self._state = self._state[0] + seconds, None

    @property
    def seconds(self) -> float:
        """With the block that is entered now."""
        done, began = self._state
        return done if began is None else done + time.perf_counter() - began


class AllreduceGroup(Group):
    """A group that can also sum gradients, for strategies without an allreduce of their framework."""

    def allreduce(self, values: np.ndarray) -> None:
        """Sum `values` over all ranks, in place: shape (n,), any numeric type, contiguous, the same n on every rank."""
        raise NotImplementedError

    @collective
    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.asarray(values, np.float64)
        self.allreduce(total)
        return total

    def sum_packed(self, values: np.ndarray, packing: Packing) -> None:
        """`allreduce` of float32 values, which ranks send to each other as bytes: the same bits on every rank.

        Each rank gets one part of all vectors, sums it in the order of ranks, and sends the packed sum to each. An
        allgather would pass it on from rank to rank: between 4 hosts with links of 20 Mbit/s, Horovod's took 1.8 times
        as long for 64 kB of each.
        """
        length = -(-len(values) // self.size)
        parts = np.zeros((self.size, length), np.float32)
        parts.reshape(-1)[: len(values)] = values
        first, *others = self._exchange_equal([packing.pack(part) for part in parts])
        total = packing.unpack(first, length)
        for packed in others:
            total += packing.unpack(packed, length)
        for part, packed in zip(parts, self._exchange_equal([packing.pack(total)] * self.size), strict=True):
            part[:] = packing.unpack(packed, length)
        values[:] = parts.reshape(-1)[: len(values)]

    def _exchange_equal(self, parts: list[np.ndarray]) -> np.ndarray:
        """Exchange parts of equal length: what each rank sends to this one, (size, length)."""
        lengths = [len(parts[0])] * self.size
        return self.exchange(f"equal.{lengths[0]}", np.concatenate(parts), lengths, lengths).reshape(self.size, -1)


class CommunicationTime(AllreduceGroup):
    """Base of groups: enter `communicating` around each allreduce, when this rank has computed what it gives."""

    def __init__(self) -> None:
        self.communicating = Stopwatch()
        self._is_known = True

    @property
    def communicate_s(self) -> float | None:
        return self.communicating.seconds if self._is_known else None

    def cannot_time_gradients(self) -> None:
        """The framework combines the gradients of several processes by itself, and does not tell how long it takes."""
        self._is_known = self.size == 1


class MPIGroup(CommunicationTime):
    """MPI's processes, through mpi4py; `allreduce` is for gradients.

    Raises UserError if MPI sees another number of processes than the launcher started.
    """

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
            for start in range(0, len(values), MAX_ELEMENTS):
                self._world.Allreduce(self._mpi.IN_PLACE, values[start : start + MAX_ELEMENTS])

    @collective
    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        received = np.empty(sum(lengths), vector.dtype)
        with self.communicating:
            self._world.Alltoallv((vector, counts), (received, lengths))
        return received

    @collective
    def gather(self, value: Any) -> list[Any]:
        return self._world.allgather(value)

    @collective
    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        self._world.Bcast(values, root)

    @collective
    def close(self) -> None:
        self._world.Barrier()


class TorchDistributedGroup(CommunicationTime):
    """The processes of torch.distributed, for the module `torch` and a backend (gloo, nccl)."""

    def __init__(self, torch: ModuleType, backend: str) -> None:
        super().__init__()
        launched = rank_info.detect()
        self._torch, self._dist = torch, torch.distributed
        self.rank, self.size, self.local_rank = launched.rank, launched.size, launched.local_rank
        self._init_process_group(backend)

    def _init_process_group(self, backend: str) -> None:
        if self._dist.is_initialized():  # a process that trains again
            return
        if self.size == 1:  # works without a launcher
            self._dist.init_process_group(backend, store=self._dist.HashStore(), rank=0, world_size=1)
            return
        address, port = rank_info.rendezvous()  # its error for a missing variable is clearer than PyTorch's
        # With MASTER_ADDR, PyTorch reads the store's address itself: torchrun already runs a store there.
        init_method = "env://" if rank_info.ADDRESS in os.environ else f"tcp://{address}:{port}"
        self._dist.init_process_group(
            backend,
            init_method=init_method,
            rank=self.rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=LIBRARY_TIMEOUT_S),
        )

    def allreduce(self, values: np.ndarray) -> None:
        """See `AllreduceGroup.allreduce`."""
        with self.communicating:
            self._dist.all_reduce(self._torch.from_numpy(values))

    @collective
    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        received = np.empty(sum(lengths), vector.dtype)
        with self.communicating:
            self._dist.all_to_all_single(*map(self._torch.from_numpy, (received, vector)), lengths, counts)
        return received

    @collective
    def gather(self, value: Any) -> list[Any]:
        gathered = [None] * self.size
        self._dist.all_gather_object(gathered, value)
        return gathered

    @collective
    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        self._dist.broadcast(self._torch.from_numpy(values), root)

    @collective
    def close(self) -> None:
        self._dist.barrier()
        atexit.register(_exit_without_destructors)


def _exit_without_destructors() -> None:
    """End the process without PyTorch's destructors: Gloo's threads sometimes abort in them after training is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_value") else 0)  # the interpreter sets it for an unhandled exception
