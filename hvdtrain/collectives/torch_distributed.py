"""The processes of torch.distributed as a group."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain.collectives.communication_time import CommunicationTime
from hvdtrain.collectives.start_limit import LIBRARY_TIMEOUT_S
from hvdtrain.system import rank_info
from hvdtrain.system.phases import collective


class TorchDistributedGroup(CommunicationTime):
    """The processes of torch.distributed, for the module of that name and a backend (gloo, nccl)."""

    controller = ""

    def __init__(self, dist: ModuleType, backend: str) -> None:
        super().__init__()
        launched = rank_info.detect()
        self._dist = dist
        self.rank, self.size, self.local_rank = launched.rank, launched.size, launched.local_rank
        self._init_process_group(backend)

    def _init_process_group(self, backend: str) -> None:
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

    @collective
    def sum(self, values: np.ndarray) -> np.ndarray:
        with self.communicating:
            return np.sum(self.gather(np.asarray(values, np.float64)), axis=0)

    @collective
    def gather(self, value: Any) -> list[Any]:
        gathered = [None] * self.size
        self._dist.all_gather_object(gathered, value)
        return gathered

    @collective
    def broadcast(self, value: Any) -> Any:
        values = [value]
        self._dist.broadcast_object_list(values, src=0)
        return values[0]

    @collective
    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        sent = [values if self.rank == root else None]
        self._dist.broadcast_object_list(sent, src=root)
        values[:] = sent[0]

    @collective
    def close(self) -> None:
        self._dist.barrier()
        atexit.register(_exit_without_destructors)


def _exit_without_destructors() -> None:
    """End the process without PyTorch's destructors: Gloo's threads sometimes abort in them after training is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_value") else 0)  # the interpreter sets it for an unhandled exception
