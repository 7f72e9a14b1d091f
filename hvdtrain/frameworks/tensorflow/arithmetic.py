"""Threads, instruction set and determinism of TensorFlow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from tensorflow.python.eager import context

from hvdtrain.errors import UserError
from hvdtrain.system import arithmetic, resources

DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
"""By --precision."""
INTRAOP, ONEDNN = "TF_NUM_INTRAOP_THREADS", "TF_ENABLE_ONEDNN_OPTS"


def settle(count: int, isa: str) -> None:
    """Compute with so many threads (0 leaves them), and check that --isa is in force.

    TensorFlow reads the threads when it computes first, and whether to use oneDNN when it is imported. Raises UserError
    if that was before they were set.
    """
    late = arithmetic.set_too_late("tensorflow")
    if count and INTRAOP in late and tf.config.threading.get_intra_op_parallelism_threads() != count:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(count)
        except RuntimeError:
            raise UserError(
                f"TensorFlow has computed before hvdtrain started, so its threads cannot be set to {count}",
                f"set {INTRAOP}={count} before the start",
                option="threads",
            ) from None
    if isa != "auto" and ONEDNN in late:
        raise UserError(
            f"--isa {isa}: TensorFlow was imported before hvdtrain started, and has decided whether to use oneDNN",
            f"set {ONEDNN}={os.environ[ONEDNN]} before the start",
            option="isa",
        )


def share_cores(count: int) -> None:
    """Compute with so many threads, unless the script has chosen a number itself, or TensorFlow has computed."""
    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threading.get_intra_op_parallelism_threads() or count)
    except RuntimeError:
        os.environ.pop(INTRAOP, None)  # it was not read


def make_deterministic(count: int, may_use_gpu: bool) -> None:
    """Make operations deterministic, or errors, where more than one thread computes them; no TF32 on GPUs."""
    uses_gpu = may_use_gpu and has_gpu()
    if count > 1 or uses_gpu:
        tf.config.experimental.enable_op_determinism()
    if uses_gpu:
        tf.config.experimental.enable_tensor_float_32_execution(False)


def has_gpu() -> bool:
    """Whether this host has a GPU that TensorFlow can use."""
    return bool(tf.config.list_physical_devices("GPU"))


def threads() -> int:
    """The threads that compute an operation."""
    value = os.environ.get(INTRAOP, "")
    by_variable = int(value) if value.isdecimal() else 0
    all_cores = len(resources.core_binding().before)
    return tf.config.threading.get_intra_op_parallelism_threads() or by_variable or all_cores


def product(precision: str, size: int) -> Callable[[], object]:
    """Multiplies two square matrices of this size on the processor."""
    with tf.device("CPU:0"):
        matrix = tf.fill([size, size], tf.cast(0.5, DTYPES[precision]))
    return lambda: tf.linalg.matmul(matrix, matrix)


def compute(precision: str) -> None:
    """Compute a convolution and a product on the processor; it raises what TensorFlow raises where it cannot.

    In the copy of a process in which TensorFlow has computed, operations wait for its threads: so in a fresh one.
    """
    if getattr(context.context(), "_initialized", False):
        path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
        code = f"from {__name__} import compute; compute({precision!r})"
        os.execve(sys.executable, [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": path})
    with tf.device("CPU:0"):
        images, filters = (tf.ones(shape, DTYPES[precision]) for shape in ((2, 8, 8, 3), (3, 3, 3, 4)))
        features = tf.reshape(tf.nn.conv2d(images, filters, 1, "VALID"), (2, -1))
        float(tf.reduce_sum(tf.linalg.matmul(features, features, transpose_b=True)))
