"""Threads, instruction set and determinism of MXNet."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os

import mxnet as mx
from mxnet.contrib import amp

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
    library = ctypes.CDLL(mx.libinfo.find_lib_path()[0])
    with contextlib.suppress(AttributeError):  # a build of another compiler
        engine, reserve = library._ZN5mxnet6engine6OpenMP3GetEv, library._ZN5mxnet6engine6OpenMP17set_reserve_coresEi
        engine.restype, reserve.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)
        reserve(engine(), max(len(resources.core_binding().before) - count, 0))
        ctypes.CDLL(OPENMP).omp_set_num_threads(count)  # for this thread


def make_deterministic(count: int, may_use_gpu: bool) -> None:
    """Nothing to do: MXNet reads variables."""


def has_gpu() -> bool:
    """False: what MXNet 1.9 computes in a reduced precision, it computes on the processor."""
    return False


def threads() -> int:
    """The threads that compute an operation."""
    with contextlib.suppress(OSError, AttributeError):
        return int(ctypes.CDLL(OPENMP).omp_get_max_threads())
    return arithmetic.threads_by_variables()


def compute_in(precision: str) -> None:
    """Let this process compute in a precision: MXNet's bf16 casts all graphs from then on, so before the first one."""
    if precision == "bf16":
        with contextlib.redirect_stdout(io.StringIO()):
            amp.init(target_dtype="bfloat16")
    elif amp.amp._amp_initialized:
        raise UserError(
            f"--precision {precision}: an earlier run or the script (by amp.init) has set this process to bf16, which "
            "MXNet keeps",
            "train in another process, for example by hvdtrain.launch, without amp.init",
            option="precision",
        )


def compute(precision: str) -> None:
    """Compute a convolution and a product on the processor; it raises what MXNet raises where it cannot."""
    compute_in(precision)
    dtype = "float16" if precision == "fp16" else "float32"
    block = mx.gluon.nn.HybridSequential()
    block.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.Dense(2))
    block.cast(dtype)
    block.initialize(ctx=mx.cpu())
    block.hybridize()
    block(mx.nd.ones((2, 3, 8, 8), dtype=dtype)).wait_to_read()
