"""Times an allreduce by one of the libraries that strategies use; `python -m hvdtrain bench allreduce` starts it.

usage: python -m hvdtrain.frameworks.allreduce_benchmark METHOD BYTES...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtrain.collectives import ring
from hvdtrain.collectives.mpi import MPIGroup
from hvdtrain.collectives.torch_distributed import TorchDistributedGroup
from hvdtrain.frameworks import tuning
from hvdtrain.system import rank_info

# Bytes reduced in total by one measurement, and limits of the number of allreduces that takes.
MEASURED_BYTES, MIN_REPEATS, MAX_REPEATS = 1 << 28, 5, 1000

Allreduce = Callable[[np.ndarray], Any]
Close = Callable[[], None]


def horovod() -> tuple[Allreduce, Close]:
    """Horovod's allreduce of a PyTorch tensor, over MPI or Gloo as its controller decides."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    return lambda values: hvd.allreduce_(torch.from_numpy(values), op=hvd.Sum, name="values"), hvd.shutdown


def gloo() -> tuple[Allreduce, Close]:
    """torch.distributed's allreduce over Gloo."""
    import torch

    group = TorchDistributedGroup(torch.distributed, "gloo")
    return lambda values: torch.distributed.all_reduce(torch.from_numpy(values)), group.close


def mpi() -> tuple[Allreduce, Close]:
    """The allreduce of --strategy mpi."""
    group = MPIGroup()
    return group.allreduce, group.close


def mpi_bare() -> tuple[Allreduce, Close]:
    """MPI.Allreduce without hvdtrain's group."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda values: world.Allreduce(MPI.IN_PLACE, values), world.Barrier


def ring_() -> tuple[Allreduce, Close]:
    """The allreduce of --strategy ring."""
    group = ring.start()
    return group.allreduce, group.close


METHODS = {"horovod": horovod, "gloo": gloo, "mpi": mpi, "mpi by hand": mpi_bare, "ring": ring_}


def seconds(allreduce: Allreduce, size: int, ranks: int) -> float:
    """Median seconds of an allreduce of `size` bytes of float32. Raises AssertionError if the sum is wrong."""
    rank = rank_info.detect().rank
    values = np.full(max(size // 4, 1), rank + 1, np.float32)
    allreduce(values)
    if not (values == ranks * (ranks + 1) / 2).all():
        raise AssertionError(f"the sum of {size} bytes is wrong")
    times = []
    for _ in range(int(np.clip(MEASURED_BYTES // max(size, 1), MIN_REPEATS, MAX_REPEATS))):
        values.fill(1)  # otherwise the sums would grow without limit
        began = time.perf_counter()
        allreduce(values)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def main(argv: list[str]) -> None:
    """Measure one of METHODS for each number of bytes; rank 0 prints one line of JSON: seconds by number of bytes."""
    tuning.set_environment()
    launched = rank_info.detect()
    allreduce, close = METHODS[argv[0]]()
    times = {size: seconds(allreduce, int(size), launched.size) for size in argv[1:]}
    if launched.rank == 0:
        print(json.dumps(times), flush=True)
    close()


if __name__ == "__main__":
    main(sys.argv[1:])
