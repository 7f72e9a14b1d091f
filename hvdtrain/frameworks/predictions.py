"""Outputs of a task's trained model, in the framework that trained it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.errors import HvdtrainError
from hvdtrain.frameworks.preparation import require, set_environment
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.frameworks.user_code import failing_model
from hvdtrain.networks.description import Weights
from hvdtrain.tasks.user import UserTask

Outputs = dict[str, np.ndarray]
"""Arrays of n rows by name: `output`, or where a model returns several, their names or numbers."""
Function = Callable[..., Any]


def outputs_of(task: UserTask, weights: Weights, framework: Framework) -> Callable[[tuple[np.ndarray, ...]], Outputs]:
    """A function from the model's inputs, arrays of n rows, to its outputs in evaluation mode, on the CPU.

    Raises UserError if the weights are not the model's; so does the function, if the model does not take the inputs.
    """
    require([framework], framework)
    set_environment()
    function = _MODELS[framework](task, weights)

    def outputs(arrays: tuple[np.ndarray, ...]) -> Outputs:
        try:
            return dict(_leaves(function(*arrays)))
        except HvdtrainError:
            raise
        except Exception as error:
            raise failing_model(task, arrays, error) from error

    return outputs


def _torch(task: UserTask, weights: Weights) -> Function:
    from hvdtrain.frameworks.torch import export

    return functools.partial(export.module_results, export.task_module(task, weights).eval())


def _tensorflow(task: UserTask, weights: Weights) -> Function:
    from hvdtrain.frameworks.tensorflow.export import TaskModel

    return TaskModel(task, weights).outputs


def _mxnet(task: UserTask, weights: Weights) -> Function:
    config = Config(framework="mxnet", strategy="single")
    learner: Any = build_learner(config, task, None, RuntimeOptions(device="cpu"))
    try:
        learner.load(weights)
    except ValueError as error:
        problem = f"returned another model than that of the checkpoint ({error})"
        raise task.error("model", problem, "use the code that has trained it") from None
    return cast(Function, learner.outputs)


_MODELS: dict[Framework, Callable[[UserTask, Weights], Function]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "mxnet": _mxnet,
}


def _leaves(outputs: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays in a model's outputs, and their names."""
    if isinstance(outputs, Mapping | tuple | list):
        for key, value in outputs.items() if isinstance(outputs, Mapping) else enumerate(outputs):
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name or "output", np.asarray(outputs)
