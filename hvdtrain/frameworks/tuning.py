"""Settings of Horovod, the frameworks and the C library that make training faster; they change no result."""

from __future__ import annotations

import contextlib
import ctypes
import os

from hvdtrain.system import rank_info, resources

# Parameters of mallopt in glibc's malloc.h, and their values; 32 MB is the largest threshold that glibc accepts.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MALLOC_OPTIONS = ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 512 << 20))

TF_CONCURRENT_OPERATIONS = "TF_NUM_INTEROP_THREADS"
"""The number of operations that TensorFlow runs at once."""


def set_environment() -> None:
    """Set tuned environment variables, unless the user set them. Horovod reads its own in init().

    Where Horovod's cycles start as published (HOROVOD_EVENT_DRIVEN=0, or no response cache), its default of 1 ms delays
    each step by up to 1 ms, which is long for a network of 0.5 MB; 0.1 ms costs almost nothing. But if all cores are
    busy, the shorter cycle reduces throughput by a quarter, so it needs a spare core per rank. TensorFlow does not read
    OMP_NUM_THREADS and would use all cores in each rank, for each operation and for several at once. The last two
    variables suppress start-up notices of TensorFlow and MXNet.
    """
    if len(resources.core_binding().before) >= 2 * rank_info.detect().size:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
    if "OMP_NUM_THREADS" in os.environ:
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])
        os.environ.setdefault(TF_CONCURRENT_OPERATIONS, os.environ["OMP_NUM_THREADS"])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of freed tensors instead of returning it to the system.

    By default, each activation of some MB is mapped and unmapped once per step; on a virtual machine the page faults
    took a third to a half of a step in PyTorch's bf16. One arena only, because backward runs in a separate thread,
    and the arenas of threads cannot hold arrays of that size. Other C libraries are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in MALLOC_OPTIONS:
            mallopt(parameter, value)
