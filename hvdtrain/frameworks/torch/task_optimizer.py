"""The optimizer and the schedules that a task in PyTorch brings itself: how they step, and their state as arrays."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from hvdtrain.config.options import Config
from hvdtrain.frameworks.own_optimizers import check_optimizer
from hvdtrain.frameworks.torch.objective import seed_generators
from hvdtrain.frameworks.torch.optimizer import (
    from_arrays,
    lay_out_state,
    make_optimizer,
    needs_closure,
    saved_state,
    to_arrays,
)
from hvdtrain.networks.description import Weights
from hvdtrain.tasks.target import Target
from hvdtrain.tasks.user import UserTask

KINDS, OPTIMIZER, SCHEDULE = "kinds", "optimizer", "schedule"
"""Names of the arrays: the classes of optimizer and schedules, the optimizer's state, and that of each schedule."""
EVERY_STEP, EVERY_EPOCH = "step", "epoch"
SCHEDULED = re.compile("((initial|min|max)_)?lr|((base|max)_)?momentum|betas|weight_decay")
"""What schedules set of an optimizer's groups."""


class TaskSchedule(NamedTuple):
    """A scheduler of learning rates, and whether it steps after every `step` or `epoch`."""

    scheduler: Any
    every: str = EVERY_STEP


class TaskOptimizer:
    """What a task's optimizer() returns, or the optimizer that the options name; and what its schedule() returns.

    parameters: those that are trained, by name. size: number of ranks. Raises UserError for an optimizer that cannot
    train them in every strategy.
    """

    def __init__(self, task: UserTask, config: Config, parameters: dict[str, nn.Parameter], size: int) -> None:
        self._task, self._schedules, self._steps_per_epoch = task, list[TaskSchedule](), 1
        self.given: dict[str, float] = {}
        """Of what decides the learning rates, what the options give."""
        if task.has("optimizer"):
            seed_generators(config.seed)  # so that all ranks make the same one
            self.optimizer = task.call("optimizer", list(parameters.items()))
            self._check(parameters)
        else:
            lr = config.lr * (size if config.batch_scope == "per-rank" else 1)
            self.optimizer = make_optimizer(dataclasses.replace(config, lr=lr), parameters)
            self.given["lr"] = lr
        self.learning_rate = self._present_rate()
        """That of the first parameter group in the latest update; before, that of the first one."""

    @classmethod
    def of(cls, target: Target, config: Config, parameters: dict[str, nn.Parameter], size: int) -> TaskOptimizer | None:
        """None where the options decide both."""
        is_own = isinstance(target, UserTask) and (target.has("optimizer") or target.has("schedule"))
        return cls(target, config, parameters, size) if is_own else None  # type: ignore[arg-type]

    def _check(self, parameters: dict[str, nn.Parameter]) -> None:
        optimizer = self.optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            problem = f"returned {type(optimizer).__name__}"
            raise self._task.error("optimizer", problem, "return one torch.optim.Optimizer")
        if type(optimizer).__module__.startswith("horovod."):
            problem = "returned Horovod's DistributedOptimizer"
            raise self._task.error("optimizer", problem, "return the one in it: the strategy combines the gradients")
        if needs_closure(optimizer):
            problem = f"returned {type(optimizer).__name__}, whose step() needs a closure"
            raise self._task.error("optimizer", problem, "return one whose step() works without, as most of them do")
        trained = {id(one) for group in optimizer.param_groups for one in group["params"] if one.requires_grad}
        names = {id(parameter): name for name, parameter in parameters.items()}
        where = f"--model {self._task.name}: optimizer()"
        check_optimizer("optimizer", trained, names, "the parameters that it gets", "requires_grad_(False)", where)

    def set_length(self, steps: int, epochs: int) -> None:
        """Make the schedules of a run of so many steps in all epochs. Raises UserError for what steps by a score."""
        self._steps_per_epoch = steps // epochs
        if self._task.has("schedule"):
            given = self._task.call("schedule", self.optimizer, steps, epochs)
            self._schedules = [self._schedule(one) for one in (given if isinstance(given, list) else [given])]
        self.learning_rate = self._present_rate()

    def _schedule(self, given: Any) -> TaskSchedule:
        remedy = 'return a scheduler, (scheduler, "epoch"), or a list of these'
        schedule = TaskSchedule(*given) if isinstance(given, tuple) and len(given) == 2 else TaskSchedule(given)
        scheduler, kind = schedule.scheduler, type(schedule.scheduler).__name__
        if schedule.every not in (EVERY_STEP, EVERY_EPOCH) or not all(
            callable(getattr(scheduler, method, None)) for method in ("step", "state_dict", "load_state_dict")
        ):
            raise self._task.error("schedule", f"returned {given!r:.80}", remedy)
        if getattr(scheduler, "optimizer", self.optimizer) is not self.optimizer:
            problem = f"returned {kind} of another optimizer"
            raise self._task.error("schedule", problem, "make it with the optimizer that it gets")
        if needed := _required(scheduler.step):
            problem = f"returned {kind}, whose step() needs {needed[0]}"
            raise self._task.error("schedule", problem, "return a schedule that follows from the number of steps alone")
        return schedule

    def update(self, apply: Callable[[], None], step: int) -> None:
        """Update the parameters by `apply`, then let the schedules step. step: its number in the run, from 0 on.

        A skipped update counts for the schedules, which thus depend on the number of steps alone. Raises UserError if
        the user's code fails.
        """
        self.learning_rate = self._present_rate()
        self._task.guard("the optimizer's step()", apply)
        for scheduler, every in self._schedules:
            if every == EVERY_STEP or (step + 1) % self._steps_per_epoch == 0:
                self._task.guard(f"the step() of {type(scheduler).__name__}", scheduler.step)

    def _present_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def _kept(self) -> Iterator[tuple[str, Any]]:
        yield OPTIMIZER, self.optimizer
        for number, schedule in enumerate(self._schedules):
            yield f"{SCHEDULE}{number}", schedule.scheduler

    def _kinds(self) -> list[str]:
        return [type(kept).__name__ for _, kept in self._kept()]

    def arrays(self) -> Weights:
        """The state as arrays. Raises UserError for one that they cannot hold."""
        arrays = to_arrays(KINDS, self._kinds())
        for name, kept in self._kept():
            arrays |= saved_state(name, kept)
        return arrays

    def accepts_state(self, arrays: Weights) -> bool:
        """Whether this is the state of an optimizer and schedules of the same classes."""
        return KINDS in arrays and from_arrays(KINDS, arrays) == self._kinds()

    def load(self, arrays: Weights, step: int | None = None) -> None:
        """Set the state; from a run of another length, with new schedules that make its steps up to this one.

        Raises ValueError, and other errors of PyTorch, if it is that of other parameters.
        """
        states = {name: from_arrays(name, arrays) for name, _ in self._kept()}
        if step is None or not self._schedules:
            for name, kept in self._kept():
                kept.load_state_dict(states[name])
        else:
            every = {EVERY_STEP: 1, EVERY_EPOCH: self._steps_per_epoch}
            counts = [(one.scheduler, step // every[one.every]) for one in self._schedules]
            self._task.guard("a step() of schedule()", fast_forward, self.optimizer, states[OPTIMIZER], counts)
        _keep_types(self.optimizer, states[OPTIMIZER]["state"])
        lay_out_state(self.optimizer)
        self.learning_rate = self._present_rate()


def fast_forward(optimizer: torch.optim.Optimizer, saved: dict[str, Any], counts: list[tuple[Any, int]]) -> None:
    """Let new schedules make so many steps each, and load an optimizer's state without what schedules set."""
    last = max(count for _, count in counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps before an update
        for step in range(last):
            for schedule, count in counts:
                if (step + 1) * count // last > step * count // last:
                    schedule.step()
    groups = [{name: group[name] for name in group if SCHEDULED.fullmatch(name)} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        group.update(values)


def _required(function: Callable[..., Any]) -> list[str]:
    """The arguments that a function cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in kinds]


def _keep_types(optimizer: torch.optim.Optimizer, saved: dict[Any, Any]) -> None:
    """Give the loaded state its own types again: load_state_dict() casts it to those of the parameters."""
    for number, parameter in enumerate(itertools.chain.from_iterable(g["params"] for g in optimizer.param_groups)):
        for key, value in saved.get(number, {}).items():
            loaded = optimizer.state[parameter][key]
            if isinstance(value, torch.Tensor) and value.dtype is not loaded.dtype:
                optimizer.state[parameter][key] = value.to(loaded.device)
