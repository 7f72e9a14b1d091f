"""Threads, instruction set and determinism of MXNet."""

from __future__ import annotations

import contextlib
import ctypes
import os

from hvdtrain.errors import UserError
from hvdtrain.system import arithmetic

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


def make_deterministic(count: int, may_use_gpu: bool) -> None:
    """Nothing to do: MXNet reads variables."""


def threads() -> int:
    """The threads that compute an operation."""
    with contextlib.suppress(OSError, AttributeError):
        return int(ctypes.CDLL(OPENMP).omp_get_max_threads())
    return arithmetic.threads_by_variables()
