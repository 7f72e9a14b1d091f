"""torch.compile for the network of a training step (`--compile`): its cache, and one compilation per host at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from hvdtrain.errors import UserError
from hvdtrain.system.arithmetic import processor
from hvdtrain.system.files import user_cache

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Where Inductor, torch.compile's default backend, keeps compiled graphs."""
THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
"""Processes that compile kernels. With one, Inductor starts no pool of processes that would outlive the compilation."""
OPTIONS = {"cpp_cache_precompile_headers": False}
"""Inductor keeps precompiled headers, 150 MB, among the temporary files, wherever its cache is."""


def compile_forward(network: nn.Module, rows: int, warm_up: Callable[[], None]) -> None:
    """Compile the network's forward pass, and the backward pass of it, for batches of `rows` images.

    Batches of other sizes, and passes without gradients as in an evaluation, take the network as it was: nothing is
    compiled again later. warm_up: runs both passes on such a batch, which compiles them. Raises UserError without a
    compiler, OSError if the cache cannot be written, and whatever PyTorch raises if it cannot compile the network,
    which then remains as it was.
    """
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if not torch.cuda.is_available() and not shutil.which(command[0]):
        raise UserError(f"there is no C++ compiler ({command[0]})", "install g++, or name another one in CXX")
    plain = network.forward
    with _only_one_compiles(Path(os.environ.get(CACHE, tempfile.gettempdir()))):
        compiled = torch.compile(plain, dynamic=False, options=OPTIONS)

        def forward(pixels: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
            chosen = compiled if torch.is_grad_enabled() and len(pixels) == rows else plain
            return chosen(pixels, *masks)

        network.forward = forward
        try:
            warm_up()
        except BaseException:
            network.forward = plain
            raise


def choose_cache() -> None:
    """Set the folder of Inductor's cache, unless the user did: one for this kind of processor in the user's cache.

    Compiled kernels contain instructions of the processor, and homes are shared between hosts. Call it before an
    optimizer is made: then PyTorch chooses a folder, among those of temporary files, which is also the one where the
    user's cache cannot be written.
    """
    os.environ.setdefault(THREADS, "1")
    if CACHE not in os.environ:
        model, _, flags = processor()
        kind = hashlib.sha256("\n".join([model, *sorted(flags), torch.__version__]).encode()).hexdigest()[:16]
        folder = user_cache() / "inductor" / kind
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[CACHE] = str(folder)


@contextlib.contextmanager
def _only_one_compiles(folder: Path) -> Iterator[None]:
    """One of the processes that enter at the same time continues; the others wait, and find what it compiled.

    They then continue together. A process that ends for any reason releases its lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "hvdtrain.lock", "a") as file:
        with contextlib.suppress(OSError):  # a file system without locks: all compile
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)
        yield
