"""Random allreduces and alltoalls by Horovod, over all ranks and process sets; each rank checks each of its results.

usage: python allreduces.py COUNT [BREAK]

BREAK: before this operation, rank 0 shuts down one of its connections; all ranks must then fail, with no wrong result.
There are no process sets then: Horovod's shutdown waits until all ranks agree to remove them, some of which may wait in
an operation for others.
All ranks draw the same operations, with sizes around those at which Horovod's messages change. A rank that is not in an
operation's process set continues with the next one, and waits there while others work.
"""

from __future__ import annotations

import os
import socket
import sys

import horovod.torch as hvd
import numpy as np
import torch
from horovod.common.exceptions import HorovodInternalError

from hvdtrain.system import rank_info

TYPES = (np.int32, np.int64, np.float16, np.float32, np.float64)
BYTES = (8, 128 << 10, 256 << 10, 4 << 20)
"""Sizes of one and two pieces of a message, and of the largest small array of two ranks."""
REPEATED = (1, 7, 1000, 20_000)
"""Elements of arrays that are reduced again and again, so that Horovod remembers and joins them."""
OPERATIONS = {"Sum": np.add, "Min": np.minimum, "Max": np.maximum, "Product": np.multiply}


def main(count: str, breaks: str = "") -> None:
    """Check COUNT operations of each kind, and print how many."""
    size = rank_info.detect().size
    everyone = list(range(size))
    members = [everyone, everyone[:1], everyone[1:], *([everyone[:-1]] if size > 2 else [])][: 1 if breaks else None]
    sets = [hvd.global_process_set, *map(hvd.ProcessSet, members[1:])]
    hvd.init(process_sets=sets[1:])
    draw = np.random.default_rng(0)
    number = 0
    try:
        while number < int(count):
            if str(number) == breaks and hvd.rank() == 0:
                break_a_connection()
            chosen = draw.integers(len(sets))
            check_exact(number, draw, sets[chosen], members[chosen])
            check_parts(number, draw, sets[chosen], members[chosen])
            check_equal(number, draw)
            check_repeated(number)
            number += 1
    except HorovodInternalError:
        if not breaks:
            raise
    print(f"{number} operations were right", flush=True)
    hvd.shutdown()


def break_a_connection() -> None:
    """Shut down one of the connections of small allreduces: those of the process whose reads wait."""
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
            connected = connection.type == socket.SOCK_STREAM and bool(connection.getpeername())
        except OSError:  # no socket, or not connected
            continue
        if connected and connection.family in (socket.AF_INET, socket.AF_INET6) and os.get_blocking(int(name)):
            connection.shutdown(socket.SHUT_RDWR)
            return
    raise AssertionError("there is no such connection")


def check_exact(number: int, draw: np.random.Generator, process_set: hvd.ProcessSet, members: list[int]) -> None:
    """An operation on small integers, whose result is exact in every type and order."""
    dtype, size, name = draw.choice(TYPES), elements(draw), draw.choice(list(OPERATIONS))
    arrays = draw.integers(0, 3, (len(members), size)).astype(dtype)
    if hvd.rank() not in members:
        return
    own = torch.from_numpy(arrays[members.index(hvd.rank())].copy())
    result = hvd.allreduce(own, name=f"exact-{number}", op=getattr(hvd, name), process_set=process_set).numpy()
    right = OPERATIONS[name].reduce(arrays, dtype=dtype)
    assert np.array_equal(result, right), (number, name, dtype, size, members, np.flatnonzero(result != right)[:10])


def check_parts(number: int, draw: np.random.Generator, process_set: hvd.ProcessSet, members: list[int]) -> None:
    """An alltoall with parts of any sizes, some of them empty."""
    dtype = draw.choice(TYPES)
    sizes = [[elements(draw) // 8 if draw.random() < 0.7 else 0 for _ in members] for _ in members]
    values = [[draw.integers(0, 99, size).astype(dtype) for size in of_rank] for of_rank in sizes]
    if hvd.rank() not in members:
        return
    place, name = members.index(hvd.rank()), f"parts-{number % 3}"  # with other sizes each time
    own, splits = torch.from_numpy(np.concatenate(values[place])), torch.tensor(sizes[place], dtype=torch.int32)
    result, received = hvd.alltoall(own, splits, name=name, process_set=process_set)
    assert received.tolist() == [of_rank[place] for of_rank in sizes], (number, sizes)
    right = np.concatenate([of_rank[place] for of_rank in values])
    assert np.array_equal(result.numpy(), right), (number, dtype, sizes)


def check_equal(number: int, draw: np.random.Generator) -> None:
    """An operation whose result depends on the order, and must be the same on all ranks to the bit."""
    size, name = elements(draw), draw.choice(["Sum", "Max"])
    own = np.random.default_rng([number, hvd.rank()]).normal(size=size).astype(np.float32)
    if not hvd.mpi_enabled():  # the maximum of a number and NaN is either; MPI's need not be the same on all ranks
        own[:: 3 + hvd.rank()] = np.nan
    result = hvd.allreduce(torch.from_numpy(own), name=f"equal-{number}", op=getattr(hvd, name))
    of_rank_0 = hvd.broadcast(result, 0, name=f"rank-0-{number}")
    assert np.array_equal(result.numpy().view(np.int32), of_rank_0.numpy().view(np.int32)), (number, name, size)


def check_repeated(number: int) -> None:
    """Several operations at the same time, which have the same names and sizes each time."""
    own = [torch.full((size,), float(number + size + hvd.rank())) for size in REPEATED]
    handles = [hvd.allreduce_async(array, name=f"repeated-{len(array)}", op=hvd.Sum) for array in own]
    for size, handle in zip(REPEATED, handles, strict=True):
        right = sum(float(number + size + rank) for rank in range(hvd.size()))
        assert bool((hvd.synchronize(handle) == right).all()), (number, size)


def elements(draw: np.random.Generator) -> int:
    """A number of elements: any up to 64, or one whose size in one of the types is about one of BYTES."""
    if draw.random() < 0.5:
        return int(draw.integers(1, 65))
    return max(int(draw.choice(BYTES)) // int(draw.choice([2, 4, 8])) + int(draw.integers(-1, 2)), 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
