"""Horovod's processes as a group, and which gradients it joins in one message (`--groups`); for its three frameworks.

A message costs a fixed time, whatever its size; but backward hides all messages except the last, so a large network
wants several. Let S be the bytes of all gradients, a the fixed cost of a message, b the bandwidth, and B the time of
backward. With k equal groups, sent one after the other as backward produces them, the time of a step grows by

    k a + max(S/b / k,  S/b - B (1 - 1/k))

The first value in the maximum holds if backward is longer than the transfer (S/b < B): the last group starts when
backward ends. The second holds if it is shorter: the first group starts at B/k, and all follow without a pause. The
derivative is zero at

    k = sqrt(min(S/b, B) / a)

The choice must be equal on all ranks, so it uses the constants below instead of measured times.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain.collectives.groups import SAME_CALLS, AllreduceGroup
from hvdtrain.collectives.limits import LIBRARY_TIMEOUT_S
from hvdtrain.config.options import Config
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.system import processes, rank_info
from hvdtrain.system.phases import collective

BLOCKING_PREFIX = "hvdtrain."
"""In the names of tensors that are not gradients: this rank waits for each of them."""
MESSAGE_S = 300e-6
"""Seconds that a message costs by itself: an 8-byte allreduce of two ranks over Gloo on one host takes 150 us with the
event-driven core, 360 us if all of it goes by Gloo's ring, and up to 1.1 ms with Horovod's own cycle."""
BANDWIDTH = 1.25e9
"""Bytes per second: 10 Gbit/s Ethernet. NCCL over 100 Gbit/s has a tenth of both the cost of a message and the time of
a byte, so the product of cost and bandwidth, which decides the size of a group, is about the same there."""
FLOPS = 50e9
"""Floating-point operations per second of a rank: half the fp32 peak of a 3 GHz core with AVX2 (96 GFLOP/s)."""
BACKWARD_FLOP = 4
"""Operations of backward for each weight and row: a multiplication and an addition for the gradient of the weights, and
the same for that of the inputs. Exact for dense layers; convolutions need more, so backward is not overestimated."""
BYTES = {"none": 4, "fp16": 2}
"""Bytes of a gradient's element in a message, by --compression."""


class HorovodGroup(AllreduceGroup):
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
        _check_size(hvd.size())
        self._use(hvd, to_tensor, to_numpy)

    def _use(
        self, hvd: ModuleType, to_tensor: Callable[[np.ndarray], Any], to_numpy: Callable[[Any], np.ndarray]
    ) -> None:
        """Take what has been initialized."""
        processes.end_at_crashes()
        self._hvd, self._to_tensor, self._to_numpy = hvd, to_tensor, to_numpy
        values = np.zeros(1)
        # In place only where tensors share the memory: after a rank was lost, MXNet's allreduce_ kept the ranks from
        # connecting again.
        is_shared = np.may_share_memory(values, to_numpy(to_tensor(values)))
        # That of TensorFlow also computes the number of ranks, by operations that take longer than a small sum.
        without_mean = getattr(importlib.import_module(f"{hvd.__name__}.mpi_ops"), "_allreduce", hvd.allreduce)
        self._allreduce = hvd.allreduce_ if is_shared else without_mean
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self.controller = "MPI" if hvd.mpi_enabled() else "Gloo"
        self._waiting_seconds = _measure_waiting(hvd)

    @property
    def communicate_s(self) -> float | None:
        """See `Group.communicate_s`; None also on GPUs, where gradients are enqueued before they are computed."""
        if self.size == 1 or self._waiting_seconds is None:
            return 0.0 if self.size == 1 else None
        seconds = self._waiting_seconds()
        return seconds if seconds >= 0 else None

    @collective
    def sum(self, values: np.ndarray) -> np.ndarray:
        return self._sum(np.asarray(values, np.float64), f"sum.{len(values)}")  # Horovod remembers each name's size

    def _sum(self, values: np.ndarray, name: str) -> np.ndarray:
        """The sum over all ranks; in the same memory where the framework's tensors share it."""
        tensor = self._to_tensor(values)
        return self._to_numpy(self._allreduce(tensor, name=BLOCKING_PREFIX + name, op=self._hvd.Sum))

    def allreduce(self, values: np.ndarray) -> None:
        total = self._sum(values, f"allreduce.{len(values)}.{values.dtype.char}")
        if not np.may_share_memory(total, values):
            values[:] = total

    @collective
    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        tensor, came = self._hvd.alltoall(self._to_tensor(vector), counts, name=f"{BLOCKING_PREFIX}{name}")
        if self._to_numpy(came).tolist() != lengths:
            raise TrainingError(f"parts of {name} came that have other sizes than this rank expects", SAME_CALLS)
        received = self._to_numpy(tensor)
        return received if received.flags.writeable else received.copy()

    @collective
    def gather(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name=f"{BLOCKING_PREFIX}gather")

    @collective
    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        tensor = self._to_tensor(values)  # MXNet reads it after the call, so that it may not be freed before
        values[:] = self._to_numpy(self._hvd.broadcast(tensor, root, name=f"{BLOCKING_PREFIX}broadcast"))

    @collective
    def close(self) -> None:
        if not self._hvd.mpi_enabled():  # a process can initialize MPI only once; Horovod ends it when the process does
            self._hvd.shutdown()


def _measure_waiting(hvd: ModuleType) -> Callable[[], float] | None:
    """Let Horovod's core measure how long this rank waits; returns what reads it, or None as it is published.

    The frameworks run Horovod's operations asynchronously, so Python cannot tell. See docs/horovod.md.
    """
    core = importlib.import_module(f"{hvd.__name__}.mpi_ops")._basics.MPI_LIB_CTYPES
    if not hasattr(core, "horovod_waiting_seconds"):
        return None
    core.horovod_measure_waiting.argtypes, core.horovod_measure_waiting.restype = [ctypes.c_char_p], None
    core.horovod_waiting_seconds.argtypes, core.horovod_waiting_seconds.restype = [], ctypes.c_double
    core.horovod_measure_waiting(BLOCKING_PREFIX.encode())
    return core.horovod_waiting_seconds


def _wait_for_slow_ranks() -> None:
    """Let Gloo wait longer than its 30 s, unless the user has set its limit; a lost rank is noticed otherwise."""
    of_launcher = str(math.ceil(rank_info.start_timeout_s()))
    if os.environ.get(rank_info.GLOO_TIMEOUT, of_launcher) == of_launcher:
        os.environ[rank_info.GLOO_TIMEOUT] = str(LIBRARY_TIMEOUT_S)


def _check_size(size: int) -> None:
    """Horovod built without the launcher's controller leaves every process believing that it is the only one."""
    launched = rank_info.detect()
    if launched.size == size:
        return
    raise UserError(
        f"{launched.launcher} started {launched.size} processes, but Horovod sees {size}: it was not built for that "
        "launcher, or HOROVOD_CONTROLLER selects another controller",
        "start --strategy horovod by hvdtrain launch, horovodrun or mpirun, or choose another strategy (--strategy "
        f"help); unset {launched.source} if it is that of another job",
    )


def gradient_groups(config: Config, parameters: Mapping[str, int], ranks: int) -> list[list[str]]:
    """Names of the parameters whose gradients share a message, in the order in which backward makes them.

    parameters: number of elements of each, in the order of forward. ranks: size of the job, which decides the rows of a
    backward pass.
    """
    sizes, names = list(parameters.values())[::-1], reversed(list(parameters))
    rows = config.global_batch(ranks) / (ranks * config.accumulate)
    count = choose_count(sizes, BYTES[config.compression], rows) if config.groups == "auto" else config.groups
    return [list(itertools.islice(names, length)) for length in split(sizes, count)]


def choose_count(sizes: Sequence[int], element_bytes: int, rows: float) -> int:
    """The number of groups of --groups auto: the formula above, rounded down, or fewer if gradients are larger.

    sizes: elements of each gradient, in the order of backward. element_bytes: bytes of an element in a message.
    rows: rows of a backward pass on one rank.
    """
    total = sum(sizes)
    transfer_s = total * element_bytes / BANDWIDTH
    backward_s = total * BACKWARD_FLOP * rows / FLOPS
    ideal = max(math.floor(math.sqrt(min(transfer_s, backward_s) / MESSAGE_S)), 1)
    return len(set(_shares(sizes, ideal)))  # a large gradient is a message of its own, small ones join a neighbor


def split(sizes: Sequence[int], count: int) -> list[int]:
    """The number of gradients in each of `count` groups of neighbors, 1 <= count <= len(sizes); none is empty.

    A gradient belongs to the share of the bytes in which its middle lies, so that no group exceeds its share by more
    than the largest gradient.
    """
    lengths = [0] * count
    group = -1
    for i, share in enumerate(_shares(sizes, count)):
        gradients_left = len(sizes) - i
        group = min(max(share, count - gradients_left), group + 1)
        lengths[group] += 1
    return lengths


def _shares(sizes: Sequence[int], count: int) -> list[int]:
    """For each gradient, which of `count` equal shares of all elements has its middle; integers, so never rounded."""
    total, ends = sum(sizes), itertools.accumulate(sizes)
    middles = (2 * end - size for size, end in zip(sizes, ends, strict=True))
    # That of one without elements may be at the end.
    return [min(middle * count // max(2 * total, 1), count - 1) for middle in middles]
