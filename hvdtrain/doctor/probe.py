"""What the doctor asks in processes of their own, because it may crash, hang or never end.

usage: python -m hvdtrain.doctor.probe LIMIT_S PART WORDS...

Prints lines that `processes.said` reads. Ends by SIGALRM after LIMIT_S, even where it stands still in a library.
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
from pathlib import Path
from statistics import median
from typing import Any

from hvdtrain.doctor.subprocesses import say

SMALL_BYTES, LARGE_BYTES = 8, 16 << 20


def framework(name: str) -> None:
    """Import a framework, then Horovod's extension for it, and tell how both were built."""
    try:
        module = importlib.import_module(name)
        say(version=str(module.__version__), **_gpus(name, module))
    except BaseException as error:
        say(framework_error=_told(error), end=True)
        return
    try:
        hvd = importlib.import_module(f"horovod.{name}")
        if not hasattr(hvd, "init"):  # some of Horovod's modules only warn
            raise ImportError(f"Extension horovod.{name} has not been built")
        built = {what: int(getattr(hvd, f"{what}_built")() or 0) for what in ("gloo", "mpi", "nccl")}
        say(built=built, libmpi=_loaded("libmpi.so"), end=True)
    except BaseException as error:
        say(horovod_error=_told(error), end=True)


def _told(error: BaseException) -> str:
    """An exception in one line, with the one that it came from."""
    cause = f"; {_told(error.__cause__)}" if error.__cause__ else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}{cause}"


def _gpus(name: str, module: Any) -> dict[str, Any]:
    """What a framework says of CUDA; nothing where it cannot tell."""
    with contextlib.suppress(Exception):
        if name == "torch":
            seen = bool(module.cuda.is_available())
            nccl = list(module.cuda.nccl.version()) if seen else None
            return {"cuda": module.version.cuda, "gpus": module.cuda.device_count() if seen else 0, "nccl": nccl}
        if name == "mxnet":
            return {
                "cuda": "" if module.runtime.Features().is_enabled("CUDA") else None,
                "gpus": module.context.num_gpus(),
            }
        if name == "tensorflow":
            built = module.sysconfig.get_build_info()
            return {"cuda": built.get("cuda_version"), "gpus": len(module.config.list_physical_devices("GPU"))}
    return {}


def _loaded(library: str) -> str:
    """The path of a shared library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if library in path:
            return f"/{path}"
    return ""


def mpi4py() -> None:
    """Load mpi4py without starting MPI, and tell which library it is."""
    importlib.import_module("mpi4py").rc.initialize = False
    mpi = importlib.import_module("mpi4py.MPI")
    say(library=mpi.Get_library_version().splitlines()[0].strip("\0 "), libmpi=_loaded("libmpi"))


def collective(name: str) -> None:
    """One job's allreduce by Horovod through a framework: who is there, whether the sum is right, how long it takes."""
    with contextlib.suppress(Exception):
        importlib.import_module("hvdtrain.frameworks.registry").set_environment()  # as in training
    import numpy as np

    module, hvd = importlib.import_module(name), importlib.import_module(f"horovod.{name}")
    tensor = _tensors(name, module)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    say(rank=rank, size=size, local_rank=hvd.local_rank(), pid=os.getpid())

    def allreduce(values: np.ndarray, key: str) -> np.ndarray:
        result = hvd.allreduce(tensor(values), name=key, op=hvd.Sum)
        return np.asarray(result.asnumpy() if name == "mxnet" else result)

    times, right = {}, True
    for size_bytes, repeats in ((SMALL_BYTES, 20), (LARGE_BYTES, 5)):
        values = np.full(size_bytes // 4, rank + 1, np.float32)
        taken = []
        for step in range(repeats + 2):
            began = time.perf_counter()
            total = allreduce(values, f"doctor.{size_bytes}")
            taken.append(time.perf_counter() - began)
            right = (right and step > 0) or bool((total == size * (size + 1) / 2).all())
        times[str(size_bytes)] = median(taken[2:])
    say(right=right, seconds=times, rank=rank, size=size)
    hvd.shutdown()


def _tensors(name: str, module: Any) -> Callable[[Any], Any]:
    if name == "torch":
        return module.from_numpy
    return module.nd.array if name == "mxnet" else module.convert_to_tensor


def mpi(address: str) -> None:
    """Meet the job's other ranks by MPI: rank 0's `address` goes to all. Then wait for a framework's name on standard
    input, and do `collective` in this process: Open MPI lets a rank start MPI once only."""
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    say(mpi_rank=world.Get_rank(), mpi_size=world.Get_size())
    say(address=world.bcast(address))
    name = sys.stdin.readline().strip()
    if name:
        collective(name)
    say(end=True)


def folder(path: str) -> None:
    """Write, lock and read a file in a folder, and tell how much room is there (bytes)."""
    room = os.statvfs(path)
    say(free=room.f_bavail * room.f_frsize, inodes=room.f_favail if room.f_files else None)
    with tempfile.NamedTemporaryFile(dir=path, prefix=".hvdtrain-doctor-") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
        say(written=True)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        say(locked=True)


def seen(path: str, patience_s: str) -> None:
    """Whether a file is there; a network file system shows it a little later."""
    deadline = time.monotonic() + float(patience_s)
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    if os.path.exists(path):
        say(seen=True)


def data() -> None:
    """Read every published data set that lies here, whole, with its checksums; nothing is fetched."""
    from hvdtrain.datasets import registry as sets
    from hvdtrain.errors import UserError
    from hvdtrain.networks.registry import NETWORKS

    shapes = {network.input_shape: network for network in NETWORKS.values()}
    for name in sets.PUBLISHED:
        network = shapes.get((3, 32, 32) if name == "cifar10" else (1, 28, 28))
        try:
            if network:
                images = len(sets.load_dataset(name, network, offline=True).train_images)
                say(**{name: {"images": images}})
        except UserError as error:
            say(**{name: {"missing" if "--offline forbids" in str(error) else "damaged": str(error)}})


def resolve(*names: str) -> None:
    """The addresses of host names, and the seconds that took."""
    for name in names:
        began = time.monotonic()
        try:
            found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)})
            say(**{name: {"addresses": found, "seconds": time.monotonic() - began}})
        except OSError as error:
            say(**{name: {"error": str(error.strerror or error)}})


PARTS: dict[str, Callable[..., None]] = {
    part.__name__: part for part in (framework, mpi4py, collective, mpi, folder, seen, data, resolve)
}


def main(argv: list[str]) -> None:
    """Run one part, never longer than asked."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(int(float(argv[0])), 1))
    try:
        PARTS[argv[1]](*argv[2:])
        status = 0
    except BaseException as error:
        print(json.dumps(_told(error))[1:-1], file=sys.stderr, flush=True)
        status = 1
    if argv[1] in ("collective", "mpi") and status == 0:
        return  # the library's own end, which MPI wants
    sys.stdout.flush()
    os._exit(status)  # some libraries abort while they are unloaded, after all is done


if __name__ == "__main__":
    main(sys.argv[1:])
