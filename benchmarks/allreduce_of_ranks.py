"""Times an allreduce by one of the libraries that strategies use; allreduce.py starts it on each rank.

usage: python benchmarks/allreduce_of_ranks.py METHOD BYTES...   (by any launcher)
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtrain.collectives import ring
from hvdtrain.collectives.groups import AllreduceGroup, MPIGroup, TorchDistributedGroup
from hvdtrain.errors import TrainingError
from hvdtrain.frameworks import preparation
from hvdtrain.system import rank_info

# Bytes reduced in total by one measurement, and limits of the number of allreduces that takes.
MEASURED_BYTES, MIN_REPEATS, MAX_REPEATS = 1 << 28, 5, 1000

Allreduce = Callable[[np.ndarray], Any]
Close = Callable[[], None]


def horovod(controller: str) -> tuple[Allreduce, Close]:
    """Horovod's allreduce of a PyTorch tensor. Raises TrainingError if Horovod runs over another controller."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    if not getattr(hvd, f"{controller}_enabled")():
        raise TrainingError(f"Horovod does not run over {controller}", "see horovodrun --check-build")

    def allreduce(values: np.ndarray) -> None:
        hvd.allreduce_(torch.from_numpy(values), op=hvd.Sum, name=f"values.{values.size}")

    return allreduce, hvd.shutdown


def gloo() -> tuple[Allreduce, Close]:
    import torch

    group = TorchDistributedGroup(torch, "gloo")
    return lambda values: torch.distributed.all_reduce(torch.from_numpy(values)), group.close


def of_group(connect: Callable[[], AllreduceGroup]) -> tuple[Allreduce, Close]:
    """That of a group of hvdtrain's."""
    group = connect()
    return group.allreduce, group.close


def mpi_bare() -> tuple[Allreduce, Close]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda values: world.Allreduce(MPI.IN_PLACE, values), world.Barrier


METHODS: dict[str, Callable[[], tuple[Allreduce, Close]]] = {
    "horovod-mpi": functools.partial(horovod, "mpi"),
    "horovod-gloo": functools.partial(horovod, "gloo"),
    "gloo": gloo,
    "mpi": functools.partial(of_group, MPIGroup),
    "mpi-by-hand": mpi_bare,
    "ring": functools.partial(of_group, ring.start),
}


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
    """Measure one of METHODS; rank 0 prints one line of JSON, the seconds by number of bytes."""
    preparation.set_environment()
    method, *sizes = argv
    launched = rank_info.detect()
    allreduce, close = METHODS[method]()
    times = {size: seconds(allreduce, int(size), launched.size) for size in sizes}
    if launched.rank == 0:
        print(json.dumps(times), flush=True)
    close()


if __name__ == "__main__":
    main(sys.argv[1:])
