"""All frameworks and their strategies; builds the learner that a configuration asks for."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from hvdtrain.collectives import ring, surviving
from hvdtrain.collectives.combining import MakeCombiner, MeanOfRanks, choose_combiner
from hvdtrain.collectives.compression import make_mean
from hvdtrain.collectives.groups import AllreduceGroup, MPIGroup, single_process
from hvdtrain.collectives.horovod_membership import MembershipGroup
from hvdtrain.collectives.limits import limited_start
from hvdtrain.collectives.surviving import Connect, SurvivingGroup
from hvdtrain.config import rules
from hvdtrain.config.option import invalid
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.arithmetic import check_precision, settle
from hvdtrain.frameworks.preparation import keep_freed_memory, require, set_environment
from hvdtrain.frameworks.user_code import UserLearner
from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.strategy import Group, Strategy
from hvdtrain.networks.description import Weights
from hvdtrain.system import arithmetic, rank_info
from hvdtrain.system.text import did_you_mean
from hvdtrain.tasks.target import Script, Target
from hvdtrain.tasks.user import UserTask

AnyStrategy = TypeVar("AnyStrategy", bound=Strategy)


@dataclass(frozen=True)
class GroupEntry:
    """A group of processes that is the same in every framework, for strategies without one of their own."""

    start: Callable[[Config, RuntimeOptions], Group]
    """Connects this process to the others. Raises UserError if the launcher does not fit."""
    summary: str
    """One line on a strategy with this group."""
    requires: tuple[str, ...] = ()
    """Modules that it imports."""
    connect: Connect | None = None
    """Connects the members of a job that survives lost ranks; None where that is impossible."""
    combiner: MakeCombiner | None = None
    """Combines gradients on the host, over the group; None for one that combines none."""


SINGLE = GroupEntry(
    lambda config, runtime: single_process(config.strategy),
    "One process on one device; gradients are not combined.",
)
ON_HOST = {
    "single": SINGLE,
    "ring": GroupEntry(
        lambda config, runtime: ring.start(runtime.hang_timeout),
        "hvdtrain's ring allreduce over TCP, on one buffer of all gradients.",
        connect=ring.connect,
        combiner=MeanOfRanks,
    ),
    "mpi": GroupEntry(
        lambda config, runtime: MPIGroup(),
        "MPI.Allreduce through mpi4py, on one buffer of all gradients.",
        ("mpi4py.MPI",),
        combiner=MeanOfRanks,
    ),
}
"""Strategies that every framework has, by their values of --strategy, with which it combines no gradients itself."""


KVSTORES = {
    "kvstore-device": "device",
    "kvstore-local": "local",
    "kvstore-dist": "dist_sync",
    "kvstore-dist-device": "dist_device_sync",
}
"""Strategies with MXNet's key-value store, and what MXNet calls it: of devices of one process, or of ranks (dist_*)."""


@dataclass(frozen=True)
class StrategyEntry(Generic[AnyStrategy]):
    """A strategy of a framework, and the learner that trains with it."""

    name: str
    """Value of --strategy."""
    strategy: type[AnyStrategy]
    learner: Callable[[Any, Any, AnyStrategy], Learner]
    """Called with what is trained, the initial weights (None if its model has its own), and the strategy."""
    connection: GroupEntry | None = None
    """The group that the strategy is made with; None for one that makes its own."""
    store: str = ""
    """Of a strategy with MXNet's key-value store: its type."""
    has_tasks: bool = True
    """Whether it also trains tasks and scripts, and not only networks as data."""

    @property
    def over(self) -> str:
        """What shares a batch: `ranks`, the `devices` of one process, or `one` device."""
        if self.store.startswith("dist"):
            return "ranks"
        if self.strategy.many_devices:
            return "devices"
        return "one" if self.connection is SINGLE else "ranks"

    @property
    def summary(self) -> str:
        """One line on what the strategy does."""
        about = self.connection.summary if self.connection else (self.strategy.__doc__ or "").partition("\n")[0]
        places = "ranks" if self.over == "ranks" else "the devices of one process"
        return f"{about.removesuffix('.')} {self.store}, over {places}." if self.store else about

    @property
    def facts(self) -> dict[str, bool]:
        """What rules need to know about it."""
        names = ("sums_shards", "many_devices", "takes_optimizer")
        of_class = {name: getattr(self.strategy, name) for name in names}
        return {"has_tasks": self.has_tasks, "can_survive": bool(self.connect), **of_class}

    @property
    def requires(self) -> tuple[str, ...]:
        """Modules that the strategy imports besides its framework."""
        return (*self.strategy.requires, *(self.connection.requires if self.connection else ()))

    @property
    def connect(self) -> Connect | None:
        """What connects the members of a job that survives lost ranks; None where the strategy cannot."""
        if self.connection or not self.strategy.conversions:
            return self.connection.connect if self.connection else None
        hvd, (to_tensor, to_numpy) = importlib.import_module(self.strategy.requires[0]), self.strategy.conversions
        return functools.partial(MembershipGroup, hvd, to_tensor, to_numpy)

    def start(self, config: Config, runtime: RuntimeOptions) -> AnyStrategy:
        """The strategy, with the processes that train together.

        Raises UserError if the launcher does not fit, TrainingError if other ranks are missing.
        """
        groups: tuple[Any, ...] = (self.connection.start(config, runtime),) if self.connection else ()
        stores = (self.store,) if self.store else ()
        return self.strategy(config, runtime, *groups, *stores)


def on_host(strategy: type[Strategy], learner: Callable[[Any, Any, Any], Learner]) -> list[StrategyEntry[Any]]:
    """The entries of ON_HOST in a framework. strategy: combines nothing. learner: an `Engine`."""
    return [StrategyEntry(name, strategy, learner, group) for name, group in ON_HOST.items()]


def _torch() -> tuple[StrategyEntry[Any], ...]:
    from hvdtrain.frameworks.styles.torch_devices import TorchDataParallel, TorchManual, TorchManualLearner
    from hvdtrain.frameworks.torch import strategies
    from hvdtrain.frameworks.torch.learner import TorchLearner

    return (
        *on_host(strategies.TorchStrategy, TorchLearner),
        StrategyEntry("horovod", strategies.TorchHorovod, TorchLearner),
        StrategyEntry("ddp", strategies.TorchDDP, TorchLearner),
        StrategyEntry("dataparallel", TorchDataParallel, TorchLearner),
        StrategyEntry("manual", TorchManual, TorchManualLearner),
    )


def _mxnet() -> tuple[StrategyEntry[Any], ...]:
    from hvdtrain.frameworks.mxnet import strategies
    from hvdtrain.frameworks.mxnet.learner import MXNetLearner
    from hvdtrain.frameworks.styles import mxnet_module as module
    from hvdtrain.frameworks.styles import mxnet_ndarray as ndarray

    networks = functools.partial(StrategyEntry[Any], has_tasks=False)
    return (
        *on_host(strategies.MXNetStrategy, MXNetLearner),
        StrategyEntry("horovod", strategies.MXNetHorovod, MXNetLearner),
        *(StrategyEntry(name, strategies.MXNetKVStore, MXNetLearner, store=store) for name, store in KVSTORES.items()),
        networks("module", module.ModuleHorovod, module.ModuleLearner),
        networks("module-single", module.ModuleStrategy, module.ModuleLearner, SINGLE),
        *(
            networks(f"module-{name}", module.ModuleKVStore, module.ModuleLearner, store=store)
            for name, store in KVSTORES.items()
        ),
        networks("ndarray", ndarray.NDArrayHorovod, ndarray.NDArrayLearner),
        networks("ndarray-single", ndarray.NDArrayStrategy, ndarray.NDArrayLearner, SINGLE),
        networks("manual", ndarray.NDArrayManual, ndarray.NDArrayLearner),
    )


def _tensorflow() -> tuple[StrategyEntry[Any], ...]:
    from hvdtrain.frameworks.styles import keras_fit
    from hvdtrain.frameworks.tensorflow import strategies
    from hvdtrain.frameworks.tensorflow.learner import TensorFlowLearner

    networks = functools.partial(StrategyEntry[Any], has_tasks=False)
    return (
        *on_host(strategies.TensorFlowStrategy, TensorFlowLearner),
        StrategyEntry("horovod", strategies.TensorFlowHorovod, TensorFlowLearner),
        StrategyEntry("mirrored", strategies.TensorFlowMirrored, TensorFlowLearner),
        StrategyEntry("multiworker", strategies.TensorFlowMultiWorker, TensorFlowLearner),
        networks("keras-fit", keras_fit.KerasHorovod, keras_fit.KerasLearner),
        networks("keras-fit-single", keras_fit.KerasStrategy, keras_fit.KerasLearner, SINGLE),
        networks("keras-fit-mirrored", keras_fit.KerasMirrored, keras_fit.KerasLearner),
        networks("keras-fit-multiworker", keras_fit.KerasMultiWorker, keras_fit.KerasLearner),
    )


ENTRIES: dict[Framework, Callable[[], tuple[StrategyEntry[Any], ...]]] = {
    "torch": _torch,
    "mxnet": _mxnet,
    "tensorflow": _tensorflow,
}
"""What makes the entries of each framework, those that train tasks first; it imports the framework."""


def build_learner(config: Config, target: Target, weights: Weights | None, runtime: RuntimeOptions) -> Learner:
    """The learner that `config` asks for. It holds `weights`, after the broadcast those of rank 0.

    Raises UserError if the framework, or what the strategy requires, is missing or does not support an option.
    """
    _prepare(config, runtime)
    entry = check_request(config, target, runtime)
    strategy = _start(entry, config, runtime)
    if isinstance(target, UserTask):
        batch = min(config.global_batch(strategy.group.size), len(target.dataset.train))
        parts = config.parts(strategy.group.size) * strategy.devices * config.accumulate
        target.expect_rows(max(batch // parts, 1))
    return entry.learner(target, weights, strategy)


def _start(entry: StrategyEntry[AnyStrategy], config: Config, runtime: RuntimeOptions) -> Any:
    """The strategy, with the processes that train together.

    Raises UserError for options that do not fit the job.
    """
    settle(config, runtime)
    if surviving.is_requested():
        assert entry.connect
        return on_group(entry, config, runtime, SurvivingGroup(entry.connect))
    with limited_start():
        strategy = entry.start(config, runtime)
    return on_group(entry, config, runtime, strategy.group) or strategy


def on_group(entry: StrategyEntry[AnyStrategy], config: Config, runtime: RuntimeOptions, group: Group) -> Any:
    """The strategy with which a combiner, or local steps, exchange what ranks compute; None if the entry's own does."""
    combiner = choose_combiner(config, entry.connection.combiner if entry.connection else None)
    has_local_steps = config.sync_every > 1
    if not (combiner or has_local_steps):
        return None
    alone = next(other for other in ENTRIES[config.framework]() if other.connection is SINGLE)
    strategy = alone.strategy(config, runtime, group)
    if combiner:
        strategy.make_combiner = combiner
    if has_local_steps:
        strategy.mean, strategy.state_by_rank = make_mean(config, cast(AllreduceGroup, group)), group.size > 1
    return strategy


def _prepare(config: Config, runtime: RuntimeOptions) -> None:
    """What must be set before a framework starts."""
    arithmetic.hold(config.threads, config.isa, config.shards)  # again, for programs that call `train` by themselves
    set_environment()
    keep_freed_memory()


USER_LOOPS = {"torch": "TorchUserLearner", "mxnet": "MXNetUserLearner"}
"""Class in <framework>/user_loop.py of each framework in which a script can have a loop of its own."""


def build_user_learner(config: Config, script: Script, runtime: RuntimeOptions) -> UserLearner:
    """The learner for a script's own loop. Raises UserError if options do not allow it, or something is missing."""
    _prepare(config, runtime)
    entry = check_request(script.given, script, runtime)
    strategy = _start(entry, config, runtime)
    module = importlib.import_module(f"hvdtrain.frameworks.{config.framework}.user_loop")
    return getattr(module, USER_LOOPS[config.framework])(strategy)


def check_request(config: Config, target: Target, runtime: RuntimeOptions) -> StrategyEntry[Any]:
    """The entry of the strategy that the options ask for; starts nothing.

    Raises UserError if the framework, or what the strategy requires, is missing or does not support an option.
    """
    known = {**target.facts, "survives": surviving.is_requested(), "ranks": rank_info.detect().size}
    rules.check(config, runtime, **known)  # before a framework is imported
    entry = find_strategy(config)
    require(entry.requires, config.framework)
    rules.check(config, runtime, **known, **entry.facts)
    check_precision(config, runtime)
    return entry


def find_strategy(config: Config) -> StrategyEntry[Any]:
    """The entry of --strategy. Raises UserError if the framework is missing or has no such strategy."""
    require([config.framework], config.framework)
    entries = {entry.name: entry for entry in ENTRIES[config.framework]()}
    if config.strategy not in entries:
        problem = f"{config.framework} has no such strategy{did_you_mean(config.strategy, entries)}"
        raise invalid("strategy", config.strategy, problem, "--strategy help lists them")
    return entries[config.strategy]


class StrategyRow(NamedTuple):
    """A strategy as `--strategy help` lists it."""

    strategy: str
    over: str
    """See `StrategyEntry.over`."""
    about: str
    problem: str
    """Why it does not run on this machine; empty if it does."""
    sums_shards: bool
    """Whether it trains with --shards."""


def list_strategies(framework: Framework) -> list[StrategyRow]:
    """All strategies of a framework, and why those that do not run on this machine do not.

    Raises UserError if the framework itself is missing.
    """
    require([framework], framework)
    return [
        StrategyRow(entry.name, entry.over, entry.summary, _problem(entry, framework), entry.strategy.sums_shards)
        for entry in ENTRIES[framework]()
    ]


def _problem(entry: StrategyEntry[Any], framework: Framework) -> str:
    try:
        require(entry.requires, framework)
    except UserError as error:
        return str(error)
    return ""
