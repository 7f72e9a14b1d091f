"""Threads, instruction set and determinism of MXNet."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable

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


def product(precision: str, size: int) -> Callable[[], object]:
    """Multiplies two square matrices of this size on the processor, in bf16 by the operation of dense layers.

    In fp32 by one that bf16 leaves alone: it casts the operations of a whole process.
    """
    import mxnet as mx  # not before `settle`

    matrix = mx.nd.full((size, size), 0.5, mx.cpu())
    if precision == "fp32":
        return lambda: mx.nd.dot(matrix, matrix).wait_to_read()
    cast = mx.nd.amp_cast(matrix, dtype="bfloat16")
    return lambda: mx.nd.FullyConnected(cast, cast, no_bias=True, num_hidden=size).wait_to_read()
