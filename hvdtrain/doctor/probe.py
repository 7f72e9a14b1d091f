"""Checks that the doctor runs in a separate process, because they may crash or hang.

usage: python -m hvdtrain.doctor.probe LIMIT_S PART ARGUMENTS...

Prints messages that `subprocesses.read_messages` reads. Ends by SIGALRM after LIMIT_S, even if a library hangs.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from hvdtrain.doctor.subprocesses import send
from hvdtrain.system.processes import mapped_files
from hvdtrain.system.stacks import DISTRIBUTIONS

SMALL_BYTES = 8
REPEATS = {SMALL_BYTES: 20, 1 << 20: 5}
"""Of allreduces, by size in bytes: also a slow link transfers the large ones in time."""
WARM_UPS = 2


def framework(name: str) -> None:
    """Import a framework, then Horovod's extension for it, and report how both were built."""
    try:
        module = _import_as_in_training(name)
        send(version=str(module.__version__), **_gpus(name, module), **_numpy(name, module))
    except BaseException as error:
        send(framework_error=_describe(error), end=True)
        return
    try:
        hvd = importlib.import_module(f"horovod.{name}")
        if not hasattr(hvd, "init"):  # some of Horovod's modules only print a warning
            raise ImportError(f"Extension horovod.{name} has not been built")
        built = {what: int(getattr(hvd, f"{what}_built")() or 0) for what in ("gloo", "mpi", "nccl")}
        send(built=built, libmpi=_loaded_library("libmpi.so"), end=True)
    except BaseException as error:
        send(horovod_error=_describe(error), end=True)


def _import_as_in_training(name: str) -> Any:
    """A framework; hvdtrain's package for it first sets what it reads when it is imported."""
    importlib.import_module(f"hvdtrain.frameworks.{name}")
    return importlib.import_module(name)


def products(name: str) -> None:
    """Multiply matrices in a framework in both precisions; report the seconds of each, by its name in --precision."""
    arithmetic = importlib.import_module("hvdtrain.frameworks.arithmetic")
    for precision in ("fp32", "bf16"):
        send(**{precision: arithmetic.product_s(name, precision)})


def _describe(error: BaseException) -> str:
    """An exception in one line, with its cause."""
    cause = f"; {_describe(error.__cause__)}" if error.__cause__ else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}{cause}"


def _gpus(name: str, module: Any) -> dict[str, Any]:
    """A framework's version of CUDA (None if built for CPUs), number of GPUs, and NCCL; empty if it cannot say."""
    with contextlib.suppress(Exception):
        if name == "torch":
            available = bool(module.cuda.is_available())
            nccl = list(module.cuda.nccl.version()) if available else None
            return {
                "cuda": module.version.cuda,
                "gpus": module.cuda.device_count() if available else 0,
                "nccl": nccl,
                "architectures": list(getattr(module.cuda, "get_arch_list", list)()) if available else [],
            }
        if name == "mxnet":
            return {
                "cuda": "" if module.runtime.Features().is_enabled("CUDA") else None,
                "gpus": module.context.num_gpus(),
            }
        if name == "tensorflow":
            built = module.sysconfig.get_build_info()
            return {
                "cuda": built.get("cuda_version"),
                "gpus": len(module.config.list_physical_devices("GPU")),
                "architectures": list(built.get("cuda_compute_capabilities", [])),
            }
    return {}


def _numpy(name: str, module: Any) -> dict[str, str]:
    """Why PyTorch cannot use NumPy, which it says only when an array is converted; empty if it can."""
    if name == "torch" and hasattr(module, "from_numpy"):
        import numpy as np

        try:
            module.from_numpy(np.zeros(1))
        except RuntimeError as error:
            return {"numpy_error": _describe(error)}
    return {}


def _loaded_library(name: str) -> str:
    """The path of a shared library that this process has loaded; empty if it has not, or the system does not tell."""
    return next((path for path in sorted(mapped_files()) if name in path), "")


def mpi4py() -> None:
    """Load mpi4py without initializing MPI, and report which library it uses."""
    importlib.import_module("mpi4py").rc.initialize = False
    mpi = importlib.import_module("mpi4py.MPI")
    send(library=mpi.Get_library_version().splitlines()[0].strip("\0 "), libmpi=_loaded_library("libmpi"))


def collective(name: str) -> None:
    """Run Horovod's allreduce through a framework; report rank and size, whether the sum is correct, and its time."""
    with contextlib.suppress(Exception):
        importlib.import_module("hvdtrain.frameworks.preparation").set_environment()  # as in training
    module, hvd = _import_as_in_training(name), importlib.import_module(f"horovod.{name}")
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    send(rank=rank, size=size, local_rank=hvd.local_rank(), pid=os.getpid())
    measured: dict[str, float] = {}
    correct = True
    for size_bytes, repeats in REPEATS.items():
        seconds, is_sum = _measure_allreduce(name, module, hvd, size_bytes, repeats)
        measured[str(size_bytes)] = seconds
        correct = correct and is_sum
    send(correct=correct, seconds=measured, rank=rank, size=size)
    hvd.shutdown()


def _measure_allreduce(name: str, module: Any, hvd: Any, size_bytes: int, repeats: int) -> tuple[float, bool]:
    """Median seconds of an allreduce of float32, and whether every result was the sum."""
    import numpy as np

    tensor = _to_tensor(name, module)
    values = np.full(size_bytes // 4, hvd.rank() + 1, np.float32)
    expected = hvd.size() * (hvd.size() + 1) / 2
    seconds, correct = [], True
    for _ in range(WARM_UPS + repeats):
        began = time.perf_counter()
        result = hvd.allreduce(tensor(values), name=f"doctor.{size_bytes}", op=hvd.Sum)
        total = np.asarray(result.asnumpy() if name == "mxnet" else result)
        seconds.append(time.perf_counter() - began)
        correct = correct and bool((total == expected).all())
    return median(seconds[WARM_UPS:]), correct


def _to_tensor(name: str, module: Any) -> Callable[[Any], Any]:
    if name == "torch":
        return module.from_numpy
    return module.nd.array if name == "mxnet" else module.convert_to_tensor


def mpi(rendezvous: str, name: str) -> None:
    """Connect the job's ranks over MPI: broadcast rank 0's `rendezvous`, then run `collective` through the framework
    whose `name` is the only one given. In this process, as Open MPI lets each rank initialize MPI only once."""
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    send(mpi_size=world.Get_size())
    send(rendezvous=world.bcast(rendezvous))
    names = set(filter(None, world.allgather(name)))
    if len(names) == 1 and names <= DISTRIBUTIONS.keys():
        collective(names.pop())
    send(end=True)


def folder(path: str) -> None:
    """Write, lock and read a file in a folder; report its free space (bytes) and inodes."""
    room = os.statvfs(path)
    send(free=room.f_bavail * room.f_frsize, inodes=room.f_favail if room.f_files else None)
    with tempfile.NamedTemporaryFile(dir=path, prefix=".hvdtrain-doctor-") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
        send(written=True)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        send(locked=True)


def exists(path: str, wait_s: str) -> None:
    """Whether a file exists, within `wait_s`: a network file system may show it a little later."""
    deadline = time.monotonic() + float(wait_s)
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    if os.path.exists(path):
        send(exists=True)


def resolve(name: str) -> None:
    """The IPv4 addresses of a host name, and the seconds that the lookup took."""
    began = time.monotonic()
    try:
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)})
        send(addresses=addresses, seconds=time.monotonic() - began)
    except OSError as error:
        send(error=str(error.strerror or error))


PARTS: dict[str, Callable[..., None]] = {
    part.__name__: part for part in (framework, products, mpi4py, collective, mpi, folder, exists, resolve)
}


def main(argv: list[str]) -> None:
    """Run one part, within its time limit."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(int(float(argv[0])), 1))
    try:
        PARTS[argv[1]](*argv[2:])
        status = 0
    except BaseException as error:
        print(json.dumps(_describe(error))[1:-1], file=sys.stderr, flush=True)
        status = 1
    if argv[1] in ("collective", "mpi") and status == 0:
        return  # a normal exit, which MPI requires
    sys.stdout.flush()
    os._exit(status)  # some libraries abort while they are unloaded, after all is done


if __name__ == "__main__":
    main(sys.argv[1:])
