"""Threads, instruction set and determinism of MXNet."""

from __future__ import annotations

import contextlib
import ctypes
import os

import mxnet

from hvdtrain.errors import UserError
from hvdtrain.system import arithmetic, resources

OPENMP = "libgomp.so.1"
"""GCC's OpenMP, by which MXNet and its OpenBLAS compute."""


def settle(count: int, isa: str) -> None:
    """Check that threads (0 leaves them) and --isa are in force, which MXNet reads when it is imported.

    Raises UserError if it was imported before they were set.
    """
    late = arithmetic.set_too_late("mxnet")
    if count and "OMP_NUM_THREADS" in late and threads() != count:
        raise UserError(
            f"MXNet computes with {threads()} threads, as it was imported before hvdtrain started, and not {count}",
            f"set OMP_NUM_THREADS={count} before the start, or import mxnet after hvdtrain.start()",
            option="threads",
        )
    if isa != "auto" and arithmetic.OPENBLAS_KERNELS in late:
        value = os.environ[arithmetic.OPENBLAS_KERNELS]
        raise UserError(
            f"--isa {isa}: MXNet was imported before hvdtrain started, so its OpenBLAS has chosen its kernels",
            f"set {arithmetic.OPENBLAS_KERNELS}={value} before the start, or import mxnet after hvdtrain.start()",
            option="isa",
        )


def share_cores(count: int) -> None:
    """Compute with so many threads, if MXNet has not computed.

    It has no function for that: its threads, which begin at the first operation, leave a number of cores to others.
    """
    library = ctypes.CDLL(mxnet.libinfo.find_lib_path()[0])
    with contextlib.suppress(AttributeError):  # a build of another compiler
        engine, reserve = library._ZN5mxnet6engine6OpenMP3GetEv, library._ZN5mxnet6engine6OpenMP17set_reserve_coresEi
        engine.restype, reserve.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)
        reserve(engine(), max(len(resources.core_binding().before) - count, 0))
        ctypes.CDLL(OPENMP).omp_set_num_threads(count)  # for this thread


def make_deterministic(count: int, may_use_gpu: bool) -> None:
    """Nothing to do: MXNet reads variables."""


def threads() -> int:
    """The threads that compute an operation."""
    with contextlib.suppress(OSError, AttributeError):
        return int(ctypes.CDLL(OPENMP).omp_get_max_threads())
    return arithmetic.threads_by_variables()
