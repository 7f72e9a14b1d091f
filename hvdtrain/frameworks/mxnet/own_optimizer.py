"""The optimizer that a script or a task in MXNet brings: its state as arrays and numbers."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from hvdtrain.errors import UserError
from hvdtrain.frameworks.mxnet.network import Parameters
from hvdtrain.frameworks.mxnet.objective import seed_generators
from hvdtrain.frameworks.own_optimizers import numbers_of
from hvdtrain.interfaces.learner import Learner, OptimizerState
from hvdtrain.tasks.user import UserTask


def task_optimizer(task: UserTask, parameters: Parameters) -> mx.optimizer.Optimizer:
    """What a task's optimizer() returns. Raises UserError for anything else than an optimizer of MXNet."""
    optimizer = task.call("optimizer", list(parameters.items()))
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        problem = f"returned {type(optimizer).__name__}"
        raise task.error("optimizer", problem, "return one mx.optimizer.Optimizer, which the trainer is made with")
    return optimizer


def settings_of(trainer: gluon.Trainer) -> dict[str, Any]:
    """What its optimizer has besides arrays, for `Learner.settings`, and by what parameters multiply its rates."""
    # The rate, not the numbers of its lr_scheduler, which may count calls: rank 0 makes more of them, for its records.
    rate = {"learning rate": trainer.learning_rate} if trainer.optimizer.lr_scheduler else {}
    factors = {name: [getattr(parameter, name) for parameter in trainer._params] for name in ("lr_mult", "wd_mult")}
    return numbers_of(trainer.optimizer) | rate | factors


class OwnStates:
    """The state of such an optimizer in a learner's trainer, on each device."""

    def __init__(self, learner: Learner, trainer: gluon.Trainer, parameters: Parameters, seed: int) -> None:
        self._seed = seed
        self._learner, self._trainer, self._optimizer = learner, trainer, trainer.optimizer
        names = {id(parameter): name for name, parameter in parameters.items()}
        self._names = [names[id(parameter)] for parameter in trainer._params]
        """By the trainer's number of each parameter."""
        if not self._is_restored():
            raise UserError(
                f"{type(self._optimizer).__name__} keeps what no checkpoint has, so that a resumed run differs",
                "let create_state() return its arrays, and let its other attributes that change be numbers",
            )

    def _is_restored(self) -> bool:
        """Whether a copy of the optimizer that gets the state after an update makes the same next one.

        True if that fails. The code may know the parameters themselves, which are left as they were.
        """
        kept = [(data, data.copy()) for parameter in self._trainer._params for data in parameter.list_data()]
        states = random.getstate(), np.random.get_state()
        try:
            (first, *of_first), (again, *of_again) = (self._copied() for _ in range(2))
            _updated(first, *of_first)
            for (_, array), (_, value) in zip(_leaves(of_again, ""), _leaves(of_first, ""), strict=True):
                array[:] = value
            vars(again).update(numbers_of(first))
            if first.lr_scheduler:
                vars(again.lr_scheduler).update(numbers_of(first.lr_scheduler))
            again._index_update_count.update(first._index_update_count)
            return np.array_equal(_updated(first, *of_first), _updated(again, *of_again), equal_nan=True)
        except Exception:
            return True
        finally:
            for data, value in kept:
                data[:] = value
            random.setstate(states[0])
            np.random.set_state(states[1])
            mx.random.seed(self._seed % (1 << 31))

    def _copied(self) -> tuple[mx.optimizer.Optimizer, mx.nd.NDArray, Any]:
        """A copy of the optimizer, one of a parameter, and its new state."""
        copied, weight = copy.deepcopy(self._optimizer), self._trainer._params[0].list_data()[0].copy()
        copied.param_dict = {}  # which is not copied
        return copied, weight, copied.create_state_multi_precision(0, weight)

    def create(self) -> None:
        """Create the states now; by default the first update would do that."""
        for device, updater in enumerate(self._trainer._updaters):
            for index, parameter in enumerate(self._trainer._params):
                values = parameter.list_data()[device]
                updater.states[index] = self._optimizer.create_state_multi_precision(index, values)
                updater.states_synced[index] = True

    def set_lr(self, lr: float) -> None:
        """The optimizer has its own."""

    def read(self) -> OptimizerState:
        """The state on the first device."""
        optimizer = self._optimizer
        arrays = {name: array.asnumpy() for name, array in self._arrays(self._trainer._updaters[0])}
        counts = {name: optimizer._index_update_count.get(index, 0) for index, name in enumerate(self._names)}
        extra: dict[str, Any] = {"optimizer": numbers_of(optimizer), "schedule": numbers_of(optimizer.lr_scheduler)}
        extra |= {"updates": counts, "length": self._learner.length}
        return OptimizerState(arrays, updates=optimizer.num_update, extra=extra)

    def write(self, state: OptimizerState) -> None:
        """Set the state on all devices, which `create` has created."""
        optimizer = self._optimizer
        has_new_schedule = optimizer.lr_scheduler and self._learner.has_other_length(state)
        if has_new_schedule and self._learner.resumed[0].step != self._learner.resumed[1].step:
            problem = "--resume: the run has other steps than the checkpoint, and the lr_scheduler counts updates"
            raise UserError(problem, "resume with its batch size and ranks")
        for updater in self._trainer._updaters:
            arrays = dict(self._arrays(updater))
            if other := arrays.keys() ^ state.arrays.keys():
                raise ValueError(f"{sorted(other)[0]} is not in both the optimizer and the checkpoint")
            for name, array in arrays.items():
                array[:] = state.arrays[name]
        for owner, kind in ((optimizer, "optimizer"), (optimizer.lr_scheduler, "schedule")):
            _check_numbers(owner, kind, state.extra[kind])
            for name, number in state.extra[kind].items():
                if owner is optimizer or not has_new_schedule:
                    setattr(owner, name, number)
        for update in range(optimizer.num_update + 1 if has_new_schedule else 0):
            optimizer.lr_scheduler(update)  # a new schedule, which follows from the updates
        counts = state.extra["updates"]
        for context in self._trainer._contexts:
            optimizer._set_current_context(context.device_id)  # it counts updates by device
            optimizer._index_update_count.update({index: counts[name] for index, name in enumerate(self._names)})

    def _arrays(self, updater: Any) -> Iterator[tuple[str, mx.nd.NDArray]]:
        """The arrays of the optimizer's state on a device, by parameter and their place in its state."""
        for index, name in enumerate(self._names):
            for place, array in _leaves(updater.states.get(index), ""):
                yield f"{name}{place}", array


def _updated(optimizer: mx.optimizer.Optimizer, weight: mx.nd.NDArray, state: Any) -> np.ndarray:
    """The parameter after an update by a made-up gradient."""
    seed_generators(0)
    optimizer.update_multi_precision(0, weight, 0.01 * (1 + weight), state)
    return weight.asnumpy()


def _leaves(state: Any, place: str) -> Iterator[tuple[str, mx.nd.NDArray]]:
    """The arrays in the state of a parameter, which is none, one, or a tuple of them, and their places."""
    if isinstance(state, mx.nd.NDArray):
        yield place or "/0", state
    elif state is not None:
        if not isinstance(state, tuple | list):
            problem = f"the optimizer's state has a {type(state).__name__}, which cannot be saved"
            raise UserError(problem, "let create_state() return an array, or a tuple of them")
        yield from itertools.chain.from_iterable(_leaves(part, f"{place}/{i}") for i, part in enumerate(state))


def _check_numbers(owner: Any, kind: str, saved: dict[str, float]) -> None:
    """Raise ValueError unless an object can take these numbers, which may be None or infinite in a new one."""
    names = vars(owner) if owner else {}
    if other := (numbers_of(owner).keys() - saved.keys()) or (saved.keys() - names.keys()):
        raise ValueError(
            f"the {kind} is not of the same class as that in the checkpoint: one of them has no number "
            f"{min(other)}, which its __init__() should set"
        )
