"""The optimizer and the schedules that a task in PyTorch brings itself: how they step, and their state as arrays."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.frameworks.own_optimizers import check_optimizer, numbers_of
from hvdtrain.frameworks.torch.network import laid_out_as, unchanged
from hvdtrain.frameworks.torch.objective import seed_generators
from hvdtrain.frameworks.torch.optimizer import (
    NUMBERS,
    from_arrays,
    make_optimizer,
    parameters_of,
    saved_states,
    to_arrays,
    trained_by,
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
        self._task, self._schedules, self._steps_per_epoch = task, dict[str, TaskSchedule](), 1
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

        def error(problem: str, remedy: str) -> UserError:
            return self._task.error("optimizer", f"returned one that cannot be used: {problem}", remedy)

        check_brought(error, optimizer, parameters, "the given parameters")

    def set_length(self, steps: int, epochs: int) -> None:
        """Make the schedules of a run of so many steps in all epochs. Raises UserError for what steps by a score."""
        self._steps_per_epoch = steps // epochs
        if self._task.has("schedule"):
            given = self._task.call("schedule", self.optimizer, steps, epochs)
            every = map(self._schedule, given if isinstance(given, list) else [given])
            self._schedules = {f"{SCHEDULE}{number}": schedule for number, schedule in enumerate(every)}
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
        for scheduler, every in self._schedules.values():
            if every == EVERY_STEP or (step + 1) % self._steps_per_epoch == 0:
                self._task.guard(f"the step() of {type(scheduler).__name__}", scheduler.step)

    def _present_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def _kept(self) -> dict[str, Any]:
        return {OPTIMIZER: self.optimizer} | {name: one.scheduler for name, one in self._schedules.items()}

    def _kinds(self) -> list[str]:
        return [type(kept).__name__ for kept in self._kept.values()]

    def arrays(self) -> Weights:
        """The state as arrays. Raises UserError for one that they cannot hold."""
        return to_arrays(KINDS, self._kinds()) | saved_states(self._kept)

    def accepts_state(self, arrays: Weights) -> bool:
        """Whether this is the state of an optimizer and schedules of the same classes."""
        return KINDS in arrays and from_arrays(KINDS, arrays) == self._kinds()

    def load(self, arrays: Weights, step: int | None = None) -> None:
        """Set the state; from a run of another length, with new schedules that make its steps up to this one.

        Raises ValueError, and other errors of PyTorch, if it is that of other parameters.
        """
        states = {name: from_arrays(name, arrays) for name in self._kept}
        if step is None or not self._schedules:
            load_states(self._kept, states)
        else:
            every = {EVERY_STEP: 1, EVERY_EPOCH: self._steps_per_epoch}
            moved = {name: step // every[schedule.every] for name, schedule in self._schedules.items()}
            self._task.guard("a step() of schedule()", load_states, self._kept, states, moved)
        self.learning_rate = self._present_rate()


def check_brought(
    error: Callable[[str, str], UserError], optimizer: Any, parameters: Mapping[str, nn.Parameter], all_of_model: str
) -> None:
    """Raise an error unless an optimizer trains the parameters, and no others, in every strategy.

    error: makes it of problem and remedy. all_of_model: the code that has all parameters.
    """
    if type(optimizer).__module__.startswith("horovod."):
        remedy = "give the one that it was made from: the strategy combines the gradients"
        raise error("the optimizer is Horovod's DistributedOptimizer", remedy)
    if needed := [name for name in _required(optimizer.step) if name != "self"]:  # which a schedule's step() has
        remedy = "give one whose step() works without arguments, as that of most of PyTorch's"
        raise error(f"the optimizer is {type(optimizer).__name__}, whose step() needs a {needed[0]}", remedy)
    trained, names = set(map(id, trained_by(optimizer))), {id(one): name for name, one in parameters.items()}
    check_optimizer(error, "optimizer", trained, names, all_of_model, "requires_grad_(False)")
    vars(optimizer)[NUMBERS] = numbers_of(optimizer)
    if not _is_restored(optimizer, [*parameters.values()]):
        raise error(
            f"{type(optimizer).__name__} keeps what its state_dict() does not have, so that a resumed run differs",
            "keep it in `state` or `param_groups`, or let state_dict() and load_state_dict() have it",
        )


def _is_restored(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> bool:
    """Whether a copy of it that loads the state after an update makes the same next one; True if that fails.

    Its code may know the parameters themselves, which are left as they were, and so are the generators. Raises
    UserError for a state that cannot be saved.
    """
    try:
        with unchanged(nn.ParameterList(parameters)):
            first, again = _copied(optimizer), _copied(optimizer)
            _updated(first)
            saved = saved_states({OPTIMIZER: first})
            load_states({OPTIMIZER: again}, {OPTIMIZER: from_arrays(OPTIMIZER, saved)})
            for of_again, of_first in zip(parameters_of(again), parameters_of(first), strict=True):
                of_again.data = of_first.detach().clone()
            return all(map(torch.equal, _updated(first), _updated(again)))
    except UserError:
        raise
    except Exception:
        return True


def _copied(optimizer: torch.optim.Optimizer) -> Any:
    """With all attributes, of which PyTorch's own copy lacks a user's, and without hooks, which may know others."""
    copied = object.__new__(type(optimizer))
    vars(copied).update(copy.deepcopy(vars(optimizer)))
    for hooks in (copied._optimizer_step_pre_hooks, copied._optimizer_step_post_hooks):
        hooks.clear()
    return copied


def _updated(optimizer: Any) -> list[torch.Tensor]:
    """The parameters after an update by made-up gradients."""
    seed_generators(0)
    for parameter in parameters_of(optimizer):
        parameter.grad = 0.01 * (1 + parameter.detach())
    type(optimizer).step(optimizer)  # a schedule may have given the object another step()
    return [parameter.detach().nan_to_num() for parameter in parameters_of(optimizer)]


def load_states(kept: Mapping[str, Any], states: Mapping[str, Any], moved: Mapping[str, int] = {}) -> None:
    """Set the states of an optimizer that a user's code brings, and of its schedules and the like, by name.

    moved: schedules that make so many steps instead, as their run has another length.
    """
    optimizer = kept[OPTIMIZER]
    groups = _fast_forward(optimizer, [(kept[name], count) for name, count in moved.items()]) if moved else []
    numbers = states[OPTIMIZER].pop(NUMBERS, {})
    vars(optimizer).update({name: n for name, n in numbers.items() if not callable(getattr(optimizer, name, None))})
    for name in kept:
        if name not in moved:
            kept[name].load_state_dict(states[name])
    for group, values in zip(optimizer.param_groups, groups, strict=bool(moved)):
        group.update(values)
    _lay_out_state(optimizer, states[OPTIMIZER].get("state", {}))


def _fast_forward(optimizer: torch.optim.Optimizer, counts: list[tuple[Any, int]]) -> list[dict[str, Any]]:
    """Let new schedules make so many steps each; returns what they then have set, of each group of the optimizer."""
    last = max(count for _, count in counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps before an update
        for step in range(last):
            for schedule, count in counts:
                if (step + 1) * count // last > step * count // last:
                    schedule.step()
    return [{name: group[name] for name in group if SCHEDULED.fullmatch(name)} for group in optimizer.param_groups]


def _required(function: Callable[..., Any]) -> list[str]:
    """The arguments that a function cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in kinds]


def _lay_out_state(optimizer: torch.optim.Optimizer, saved: Mapping[int, dict[str, Any]]) -> None:
    """Give the loaded state its own types again, and the strides of the parameters, as when it was made.

    load_state_dict() casts it to the types of the parameters; it was saved in contiguous arrays.
    """
    for number, parameter in enumerate(parameters_of(optimizer)):
        loaded = optimizer.state.get(parameter, {})
        for key, value in loaded.items():
            before = saved.get(number, {}).get(key)
            if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
                typed = value if value.dtype is before.dtype else before.to(value.device)
                loaded[key] = laid_out_as(parameter.detach(), typed) if typed.shape == parameter.shape else typed
