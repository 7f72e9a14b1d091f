"""What a framework needs before it trains: its modules, and settings of its environment and of the C library."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from collections.abc import Iterable

from hvdtrain.config.options import Framework
from hvdtrain.errors import UserError
from hvdtrain.system import arithmetic, rank_info, resources, stacks

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
    arithmetic.share_cores()
    for name in ("TF_NUM_INTRAOP_THREADS", TF_CONCURRENT_OPERATIONS):
        if name not in os.environ and (threads := arithmetic.openmp_threads()):
            arithmetic.set_default(name, str(threads))
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


def require(modules: Iterable[str], framework: Framework) -> None:
    """Import modules that `framework`, or one of its strategies, needs; raises UserError if one cannot be imported."""
    prepare(framework)
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise _missing(name, framework, error) from None
    if framework == "tensorflow":
        _check_keras()


def prepare(framework: Framework) -> None:
    """Set what a framework reads when it is imported; call it before anything that may import it. Raises UserError."""
    package = importlib.import_module(f"hvdtrain.frameworks.{framework}")
    if framework == "tensorflow" and os.environ.get(package.BACKEND, "tensorflow") != "tensorflow":
        _check_keras()  # before the file of a task fails to import it


def _missing(name: str, framework: Framework, error: Exception) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else "no reason given"
    if name == framework:
        why = stacks.why_missing(framework)
        is_broken = not isinstance(error, ModuleNotFoundError)
        command = "python -m hvdtrain doctor" if is_broken else stacks.setup_command(stacks.stack_with(framework))
        return UserError(
            f"{framework} cannot be imported ({reason})" + (f": it {why}" if why else ""), f"run: {command}"
        )
    what = "mpi4py" if name == "mpi4py.MPI" else f"Horovod for {framework}"
    remedy = "run: make setup, which installs what is missing, or train one process with --strategy single"
    return UserError(f"{what} cannot be imported ({reason})", remedy)


def _check_keras() -> None:
    """Raise UserError unless `tf.keras` can be imported, and computes by TensorFlow."""
    from hvdtrain.frameworks.tensorflow import BACKEND, LEGACY_KERAS

    try:
        import tensorflow as tf

        backend = tf.keras.backend.backend()
    except (ImportError, ValueError):  # of tf_keras, or of the backend
        if (backend := os.environ.get(BACKEND, "tensorflow")) == "tensorflow":
            raise UserError(
                f"{LEGACY_KERAS} is set, and Keras 2, the package tf_keras, is not installed",
                f"unset it, or run: pip install --no-deps 'tf-keras=={tf.__version__.rpartition('.')[0]}.*'",
            ) from None
    if backend != "tensorflow":
        raise UserError(f"Keras computes by {backend}, not by TensorFlow", f"set {BACKEND}=tensorflow")
