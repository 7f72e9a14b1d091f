"""The only place that imports a framework, and it imports the one that was asked for."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os

from hvdtrain import environ
from hvdtrain.config import Config
from hvdtrain.errors import UserError
from hvdtrain.learner import Group, Learner
from hvdtrain.lenet import NETWORKS, Weights

EXTRAS = {"torch": "pytorch", "mxnet": "mxnet", "tensorflow": "tensorflow"}

# What a framework's Horovod lacks: option, value that can be had, reason.
LACKS = {
    "mxnet": (
        ("accumulate", 1, "Horovod for MXNet has no backward_passes_per_step"),
        ("op", ("average", "sum"), "Horovod for MXNet has no Adasum"),
        ("precision", ("fp32", "bf16"), "MXNet 1.9 has no fp16 matrix product on the CPU"),
    ),
    "tensorflow": (),
    "torch": (),
}


def build(config: Config, weights: Weights, device: str = "auto") -> Learner:
    """The learner that `config` asks for, in its group, holding `weights` and, after the broadcast, rank 0's.

    device: `auto`, `cpu` or `gpu`. Raises UserError where the framework or its Horovod is missing, or cannot do
    what is asked.
    """
    refuse(config)
    set_environment()
    keep_memory()
    module = load(config.framework, config.strategy)
    return module.build(config, NETWORKS[config.model], weights, device)


def refuse(config: Config) -> None:
    """Raise UserError for an option that this framework cannot honour."""
    joins_updates = config.framework == "torch" and config.op == "adasum"
    if joins_updates and (config.clip_norm or config.on_nan == "skip" or config.precision == "fp16"):
        raise UserError(
            "--op adasum: in PyTorch Adasum joins updates, so there is no joined gradient for --clip-norm, "
            "--on-nan skip or --precision fp16; leave these out"
        )
    for name, can, reason in LACKS[config.framework]:
        value = getattr(config, name)
        if value not in (can if isinstance(can, tuple) else (can,)):
            raise UserError(f"--{name} {value}: {reason}; leave it at {RECIPE_DEFAULT[name]} or change --framework")


RECIPE_DEFAULT = {"accumulate": 1, "op": "average", "precision": "fp32"}


def set_environment() -> None:
    """Tuned settings, unless the user set them. Horovod reads them at init.

    A cycle of 1 ms, Horovod's default, is a wait of 1 ms a step for a network of 0.5 MB, and 0.1 ms next to none. But
    on a machine whose cores are all busy the shorter cycle takes a quarter of the speed, so it needs a spare core a
    rank. TensorFlow logs its banners at import otherwise.
    """
    if len(os.sched_getaffinity(0)) >= 2 * environ.place().size:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def keep_memory() -> None:
    """Let glibc keep the memory of freed tensors, instead of handing it back to the system and faulting it in anew.

    By default each activation of some MB is mapped and unmapped once a step, and on a virtual machine the page faults
    took a third to a half of a step in PyTorch's bf16. One arena, because backward runs in a thread of its own, and the
    arenas of threads cannot hold arrays of that size. Nothing happens with another C library.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 512 << 20)):
            mallopt(parameter, value)


# glibc's malloc.h; 32 MB is the largest threshold that it takes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def choose_device(asked: str, seen: bool, count: int, group: Group) -> str:
    """`cpu` or `cuda:<local_rank>`. Raises UserError where there is no GPU, or none for this local rank."""
    if asked == "cpu" or (asked == "auto" and not seen):
        return "cpu"
    if not seen:
        raise UserError("--device gpu: the framework sees no GPU here; use --device cpu, or see nvidia-smi")
    if group.local_rank >= count:
        raise UserError(
            f"local rank {group.local_rank} has no GPU: {count} on this host, and one rank takes one; "
            "start fewer processes a host, or use --device cpu"
        )
    return f"cuda:{group.local_rank}"


def load(framework: str, strategy: str):
    """The adapter module of this framework, with Horovod for it where the strategy needs that."""
    names = [framework] + ([f"horovod.{framework}"] if strategy == "horovod" else [])
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(_missing(name, framework, error)) from None
    return importlib.import_module(f"hvdtrain.frameworks.{framework}")


def _missing(name: str, framework: str, error: ImportError) -> str:
    extra = EXTRAS[framework]
    reason = str(error).splitlines()[0] if str(error) else "it does not import"
    if name == framework:
        return f"{framework} cannot be imported ({reason}); run: pip install 'hvdtrain[{extra}]'"
    try:
        importlib.import_module("horovod")
    except ImportError:
        return "Horovod is not installed; run: make setup (or give --strategy single for one process)"
    return (
        f"Horovod was built without {framework} ({reason}); "
        "run: make setup, which builds it with the frameworks that are installed"
    )
