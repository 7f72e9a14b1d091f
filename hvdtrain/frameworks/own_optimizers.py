"""The optimizers that tasks and scripts bring: which parameters they train, and whose state theirs is."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import OptimizerState
from hvdtrain.tasks.target import Target
from hvdtrain.tasks.user import UserTask

KIND = "kind of optimizer"
"""In the arrays of its state: the class, as text."""


def at_setup(problem: str, remedy: str) -> UserError:
    """What a script gives to setup() is wrong."""
    return UserError(f"setup(): {problem}", remedy)


def check_optimizer(
    error: Callable[[str, str], UserError], kind: str, trained: Set[int], names: Mapping[int, str], all_of_model: str,
    freeze: str,
) -> None:  # fmt: skip
    """Raise an error unless an optimizer trains all parameters of the model that can be trained, and no others.

    error: makes it of problem and remedy. kind: what the framework calls an optimizer. trained: the identities of its
    parameters. names: those of the model's, by identity. all_of_model, freeze: the code that corrects it.
    """
    if not names or trained - names.keys():
        problem = "has parameters that are not the model's" if names else "has nothing to train"
        raise error(f"the {kind} {problem}", f"make it with {all_of_model}")
    if missing := [name for parameter, name in names.items() if parameter not in trained]:
        remedy = f"give it all parameters, or freeze this one with {freeze}"
        raise error(f"the {kind} lacks the parameter {missing[0]}", remedy)


def with_optimizer(target: Target) -> UserTask | None:
    """The target, if it is a task that brings its optimizer."""
    return target if isinstance(target, UserTask) and target.has("optimizer") else None


def with_kind(state: OptimizerState, optimizer: Any) -> OptimizerState:
    """The state of a task's own optimizer, with its class."""
    return state._replace(arrays={**state.arrays, KIND: np.frombuffer(type(optimizer).__name__.encode(), np.uint8)})


def is_of_kind(state: OptimizerState, own: OptimizerState) -> bool:
    """Whether it is the state of an optimizer of the same class with the same arrays, such as momentum."""
    saved, arrays = state.arrays, own.arrays
    return saved.keys() == arrays.keys() and saved[KIND].tobytes() == arrays[KIND].tobytes()


def numbers_of(owner: Any) -> dict[str, float]:
    """The finite numbers among an object's attributes."""
    return {
        name: int(value) if isinstance(value, numbers.Integral) else float(value)
        for name, value in (vars(owner) if owner else {}).items()
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    }
