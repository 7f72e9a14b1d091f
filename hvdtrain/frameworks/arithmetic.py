"""How a framework that is imported is held at the threads, instruction set and determinism that the options ask for.

Also in which precisions it computes on this processor, and how fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.system import arithmetic, stacks
from hvdtrain.system.attempt import attempt
from hvdtrain.system.processes import mapped_files

OWN_THREADS: dict[str, str] = {"torch": "MKL_NUM_THREADS", "tensorflow": "TF_NUM_INTRAOP_THREADS"}
"""Variables that take precedence over OMP_NUM_THREADS."""
OPENBLAS = "OPENBLAS_NUM_THREADS"
OF_NUMPY = re.compile(r"/numpy[^/]*/.*openblas[^/]*$")
OPENBLAS_THREADS = tuple(f"{prefix}openblas_set_num_threads{end}" for prefix in ("", "scipy_") for end in ("", "64_"))
"""The names that builds of OpenBLAS give one function."""
PRODUCT = 512
"""Rows and columns of the matrices that are multiplied to compare precisions."""
WARM_UPS, PRODUCTS, LIMIT_S = 2, 7, 1.0
"""Products before those that count, products, and about how long those of a precision may take."""


def settle(config: Config, runtime: RuntimeOptions) -> None:
    """Set what only the framework's own functions set, and what variables came too late for; before it computes.

    Raises UserError if that is impossible.
    """
    count = arithmetic.fixed_threads(config.threads, config.shards)
    if count or config.isa != "auto":
        _module(config.framework).settle(count, config.isa)
    if not count and _is_late(config.framework):
        _module(config.framework).share_cores(arithmetic.default_threads())
    _settle_numpy(count or arithmetic.default_threads())
    if config.shards:
        _module(config.framework).make_deterministic(count, runtime.device != "cpu")


def too_many_threads(framework: Framework) -> str:
    """Why a framework computes with more threads than its rank has cores, and what to do; empty if it does not."""
    share, used = arithmetic.default_threads(), threads(framework)
    if not _is_late(framework) or used <= share:
        return ""
    return (
        f"{stacks.TITLES[framework]} computes with {used} threads, as it was used before hvdtrain started, and this "
        f"rank has {share} core(s) for itself; set {arithmetic.OPENMP}={share} before the start"
    )


def _is_late(framework: Framework) -> bool:
    """Whether the framework was imported before the default of its threads was set, and no variable of its own is."""
    late = arithmetic.OPENMP in arithmetic.set_too_late(framework) and bool(arithmetic.default_threads())
    return late and OWN_THREADS.get(framework) not in arithmetic.given_environment()


def _settle_numpy(count: int) -> None:
    """Let the OpenBLAS of a NumPy that is imported compute with so many threads (0 leaves them)."""
    if not count or "numpy" not in sys.modules or os.environ.get(OPENBLAS, str(count)) != str(count):
        return
    for path in filter(os.path.exists, filter(OF_NUMPY.search, mapped_files())):
        library = ctypes.CDLL(path)
        for name in OPENBLAS_THREADS:
            if hasattr(library, name):
                getattr(library, name)(count)


def check_precision(config: Config, runtime: RuntimeOptions) -> None:
    """Raise UserError if the framework does not compute in --precision on this processor, where that would train."""
    framework, precision = config.framework, config.precision
    if precision == "fp32" or (runtime.device != "cpu" and _module(framework).has_gpu()):
        return
    if problem := precision_problem(framework, precision):
        isa = "" if config.isa == "auto" else f" with --isa {config.isa}"
        raise UserError(
            f"--precision {precision}: {framework} does not compute in it on this processor{isa} ({problem})",
            f"use --precision {' or '.join(_other_precisions(config))}",
            option="precision",
        )


@functools.cache
def precision_problem(framework: Framework, precision: str) -> str:
    """Why a framework does not compute in a precision on this processor, in one line; empty if it does.

    It is tried in a copy of this process: it may crash, as TensorFlow's bf16 with oneDNN held at AVX2, MXNet's changes
    the whole process, and TensorFlow cannot divide a CPU any more once it has computed.
    """
    return attempt(functools.partial(_module(framework).compute, precision)).problem


def _other_precisions(config: Config) -> Iterator[str]:
    """The precisions that the other options allow and this processor can compute in."""
    for other in get_args(get_type_hints(Config)["precision"]):
        with contextlib.suppress(UserError):
            dataclasses.replace(config, precision=other)
            if other == "fp32" or not precision_problem(config.framework, other):
                yield other


def threads(framework: Framework) -> int:
    """The threads that compute an operation."""
    return _module(framework).threads() if framework in sys.modules else arithmetic.threads_by_variables()


def product_s(framework: Framework, precision: str) -> float | None:
    """Seconds of a product of two PRODUCT x PRODUCT matrices on this processor, the fastest of several.

    None for MXNet: its bf16 casts the operations of the whole process.
    """
    if framework == "mxnet":
        return None
    multiply = _module(framework).product(precision, PRODUCT)
    seconds: list[float] = []
    while len(seconds) < WARM_UPS + PRODUCTS and sum(seconds) < LIMIT_S:
        began = time.perf_counter()
        multiply()
        seconds.append(time.perf_counter() - began)
    return min(seconds[WARM_UPS:] or seconds)


def slow_precision(framework: Framework, precision: str) -> str:
    """Why --precision makes training slower on this processor, and what to do; empty if it does not."""
    if precision == "fp32":
        return ""
    reduced, full = product_s(framework, precision), product_s(framework, "fp32")
    if reduced is None or full is None or reduced < arithmetic.SLOWER * full:
        return ""
    return (
        f"--precision {precision} is slower than fp32 on this processor: a product of two {PRODUCT}x{PRODUCT} matrices "
        f"takes {1000 * reduced:.2g} ms instead of {1000 * full:.2g} ms; leave it out to train faster"
    )


def waiter(framework: Framework, device: str) -> Callable[[], object] | None:
    """What waits for the device, for a timeline; None where all is computed when a step returns."""
    if framework == "mxnet":  # its engine computes in threads of its own on every device
        import mxnet as mx

        return mx.nd.waitall
    if framework == "torch" and device != "cpu":
        import torch

        return torch.cuda.synchronize
    return None


def _module(framework: Framework) -> Any:
    """That of the framework's folder."""
    return importlib.import_module(f"hvdtrain.frameworks.{framework}.arithmetic")
