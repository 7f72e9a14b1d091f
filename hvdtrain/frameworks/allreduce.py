"""One allreduce, by each of the means that strategies use, timed: `python -m hvdtrain bench allreduce` starts it.

usage: python -m hvdtrain.frameworks.allreduce MEANS BYTES...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtrain.collectives import groups, ring
from hvdtrain.frameworks import registry
from hvdtrain.system import rank_info

# Bytes sent in all by one measurement, and the least and greatest number of allreduces for it.
MEASURED_BYTES, LEAST, MOST = 1 << 28, 5, 1000


def horovod() -> tuple[Callable[[np.ndarray], Any], Callable[[], None]]:
    """Horovod's allreduce of a PyTorch tensor, over its own controller's means."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    return lambda values: hvd.allreduce_(torch.from_numpy(values), op=hvd.Sum, name="values"), hvd.shutdown


def gloo() -> tuple[Callable[[np.ndarray], Any], Callable[[], None]]:
    """torch.distributed's allreduce over Gloo."""
    import torch

    group = groups.TorchDistributedGroup(torch.distributed, "gloo")
    return lambda values: torch.distributed.all_reduce(torch.from_numpy(values)), group.close


def mpi() -> tuple[Callable[[np.ndarray], Any], Callable[[], None]]:
    """What --strategy mpi calls."""
    group = groups.MPIGroup()
    return group.allreduce, group.close


def mpi_bare() -> tuple[Callable[[np.ndarray], Any], Callable[[], None]]:
    """MPI.Allreduce called by hand."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda values: world.Allreduce(MPI.IN_PLACE, values), world.Barrier


def ring_() -> tuple[Callable[[np.ndarray], Any], Callable[[], None]]:
    """What --strategy ring calls."""
    group = ring.start()
    return group.allreduce, group.close


MEANS = {"horovod": horovod, "gloo": gloo, "mpi": mpi, "mpi by hand": mpi_bare, "ring": ring_}


def seconds(allreduce: Callable[[np.ndarray], Any], size: int, ranks: int) -> float:
    """Median seconds of an allreduce of float32 that are `size` bytes in all; checks that the sum is right."""
    rank = rank_info.detect().rank
    values = np.full(max(size // 4, 1), rank + 1, np.float32)
    allreduce(values)
    if not (values == ranks * (ranks + 1) / 2).all():
        raise AssertionError(f"the sum of {size} bytes is wrong")
    times = []
    for _ in range(int(np.clip(MEASURED_BYTES // max(size, 1), LEAST, MOST))):
        values.fill(1)  # or sums would grow without end
        began = time.perf_counter()
        allreduce(values)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def main(argv: list[str]) -> None:
    """Measure one of MEANS for each number of bytes; rank 0 prints one JSON line."""
    registry.set_environment()
    place = rank_info.detect()
    allreduce, close = MEANS[argv[0]]()
    times = {size: seconds(allreduce, int(size), place.size) for size in argv[1:]}
    if place.rank == 0:
        print(json.dumps(times), flush=True)
    close()


if __name__ == "__main__":
    main(sys.argv[1:])
