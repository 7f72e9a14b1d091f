"""The only place that imports a framework, and it imports the one that was asked for."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from hvdtrain.config.options import Config, Framework
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.interfaces import ElasticMemory, Group, Learner
from hvdtrain.networks.description import Weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.system import rank_info

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


# framework: programming style: the modules here that hold its strategies; the first style is the default.
MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "torch": {"loop": ("torch.learner", "torch.manual")},
    "tensorflow": {"loop": ("tensorflow.learner",), "fit": ("tensorflow.keras_fit",)},
    "mxnet": {"gluon": ("mxnet.learner",), "module": ("mxnet.module",), "ndarray": ("mxnet.ndarray",)},
}


def build_learner(config: Config, weights: Weights, runtime: RuntimeOptions, group: Group | None = None) -> Learner:
    """The learner that `config` asks for, in its group, holding `weights` and, after the broadcast, rank 0's.

    group: for --strategy single, which then trains alone beside others. Raises UserError where the framework or what
    the strategy needs is missing, or cannot do what is asked.
    """
    refuse(config)
    set_environment()
    keep_memory()
    module, kind = find(config)
    for name in kind.needs:
        require(name, config)
    refuse_options(config, kind.lacks)
    if runtime.devices > 1 and not kind.many_devices:
        raise UserError(f"--devices {runtime.devices}: --strategy {config.strategy} takes one device a process")
    strategy = kind(config, runtime, group) if group else kind(config, runtime)
    return module.build(config, NETWORKS[config.model], weights, strategy, runtime)


def run_elastic(config: Config, train: Callable[[ElasticMemory], Path]) -> Path:
    """What `train` returns; it is called again whenever ranks came or went. Raises UserError where that cannot be."""
    if config.framework == "mxnet" or config.strategy != "horovod" or config.api == "fit":
        raise UserError(
            "--elastic: Horovod has it for PyTorch and TensorFlow, with --strategy horovod and a loop; "
            "launch --restarts N starts all others again"
        )
    if rank_info.ELASTIC not in os.environ:
        raise UserError("--elastic: start by python -m hvdtrain launch horovodrun --elastic, or horovodrun --min-np")
    require(f"horovod.{config.framework}", config)
    return importlib.import_module("hvdtrain.frameworks.elastic").run(config.framework, train)


def find(config: Config) -> tuple[ModuleType, Any]:
    """The module and the class of the strategy. Raises UserError where this framework, or this style, has none."""
    require(config.framework, config)
    styles = MODULES[config.framework]
    if config.api not in ("auto", *styles):
        raise UserError(f"--api {config.api}: {config.framework} has {', '.join(styles)}")
    for style in styles if config.api == "auto" else (config.api,):
        for name in styles[style]:
            module = importlib.import_module(f"hvdtrain.frameworks.{name}")
            if config.strategy in module.STRATEGIES:
                return module, module.STRATEGIES[config.strategy]
    api = "" if config.api == "auto" else f" with --api {config.api}"
    raise UserError(
        f"--strategy {config.strategy}: {config.framework} has no such strategy{api}; --strategy help lists them"
    )


class Offer(NamedTuple):
    """A strategy as `--strategy help` lists it."""

    strategy: str
    api: str
    over: str
    """What shares a batch: `ranks`, `devices` of one process, or `one`."""
    about: str
    problem: str
    """Why it does not run here; empty where it does."""


def offers(framework: Framework) -> list[Offer]:
    """All strategies of a framework in all styles, and why those that do not run here do not.

    Raises UserError where the framework itself is missing.
    """
    config = Config(framework=framework, strategy="single")
    require(framework, config)
    listed = []
    for api, names in MODULES[framework].items():
        for name in names:
            strategies = importlib.import_module(f"hvdtrain.frameworks.{name}").STRATEGIES
            listed += [_offer(strategy, api, kind, config) for strategy, kind in strategies.items()]
    return listed


def _offer(strategy: str, api: str, kind: Any, config: Config) -> Offer:
    problem = ""
    try:
        for name in kind.needs:
            require(name, config)
    except UserError as error:
        problem = str(error)
    over = "devices" if kind.many_devices else "one" if strategy == "single" else "ranks"
    return Offer(strategy, api, over, kind.__doc__.split("\n")[0], problem)


def refuse(config: Config) -> None:
    """Raise UserError for an option that this framework cannot honour."""
    joins_updates = config.framework == "torch" and config.op == "adasum"
    if joins_updates and (config.clip_norm or config.on_nan == "skip" or config.precision == "fp16"):
        raise UserError(
            "--op adasum: in PyTorch Adasum joins updates, so there is no joined gradient for --clip-norm, "
            "--on-nan skip or --precision fp16; leave these out"
        )
    refuse_options(config, LACKS[config.framework])


def refuse_options(config: Config, lacks: Iterable[tuple[str, Any, str]]) -> None:
    """Raise UserError where an option has a value that cannot be had: (option, value or values to be had, reason)."""
    for name, can, reason in lacks:
        value = getattr(config, name)
        if value not in (can if isinstance(can, tuple) else (can,)):
            usual = getattr(Config, name)
            raise UserError(
                f"--{name.replace('_', '-')} {value}: {reason}; leave it at {usual}, or change framework or strategy"
            )


def set_environment() -> None:
    """Tuned settings, unless the user set them. Horovod reads them at init.

    A cycle of 1 ms, Horovod's default, is a wait of 1 ms a step for a network of 0.5 MB, and 0.1 ms next to none. But
    on a machine whose cores are all busy the shorter cycle takes a quarter of the speed, so it needs a spare core a
    rank. TensorFlow does not read OMP_NUM_THREADS, and takes all cores in each rank. It and MXNet print notices
    otherwise.
    """
    if len(os.sched_getaffinity(0)) >= 2 * rank_info.detect().size:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
    if "OMP_NUM_THREADS" in os.environ:
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")


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


def count_devices(asked: int, gpus: int) -> int:
    """Devices of a process whose strategy uses several: as asked, else all GPUs, else two parts of the CPU."""
    return asked or gpus or 2


def require(name: str, config: Config) -> None:
    """Raise UserError, with the command that mends it, where the module `name` cannot be imported."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise UserError(_missing(name, config.framework, error)) from None


def _missing(name: str, framework: str, error: ImportError) -> str:
    reason = str(error).splitlines()[0] if str(error) else "it does not import"
    if name == framework:
        return f"{framework} cannot be imported ({reason}); run: pip install 'hvdtrain[{EXTRAS[framework]}]'"
    if name == "mpi4py.MPI":
        return f"mpi4py cannot be imported ({reason}); run: make setup, which installs it and an MPI"
    try:
        importlib.import_module("horovod")
    except ImportError:
        return "Horovod is not installed; run: make setup (or give --strategy single for one process)"
    return (
        f"Horovod was built without {framework} ({reason}); "
        "run: make setup, which builds it with the frameworks that are installed"
    )
