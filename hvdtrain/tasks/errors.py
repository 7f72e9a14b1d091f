"""What can be wrong with a task: the errors, equal for all frameworks, and the checks that need no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvdtrain.config.options import Framework
from hvdtrain.errors import UserError
from hvdtrain.tasks.user import UserTask

MODELS: dict[Framework, str] = {
    "torch": "a torch.nn.Module",
    "tensorflow": "a tf.keras.Model",
    "mxnet": "a gluon.Block",
}
"""What model() returns."""
PACKAGES: dict[str, Framework] = {"torch": "torch", "mxnet": "mxnet", "keras": "tensorflow", "tensorflow": "tensorflow"}
"""The packages whose classes a framework's models derive from."""


def no_model(task: UserTask, model: Any, framework: Framework) -> UserError:
    """model() returned what this framework cannot train."""
    packages = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    known = next((PACKAGES[package] for package in packages if package in PACKAGES), framework)
    remedy = f"use --framework {known}" if known != framework else f"return {MODELS[framework]}"
    return task.error("model", f"returned {type(model).__name__}, and --framework is {framework}", remedy)


def nothing_to_train(task: UserTask) -> UserError:
    """The model has no trainable parameters."""
    return task.error("model", "returned a model without trainable parameters", "return one that can learn")


def failing_model(task: UserTask, inputs: Iterable[Any], error: Exception) -> UserError:
    """The model does not take these arrays."""
    shapes = _describe(inputs)
    message = " ".join(str(error).split())
    problem = f"returned a model that fails on inputs {shapes} ({message:.300})"
    return task.error("model", problem, "let it take the first array(s) of data()'s rows")


def _describe(tensors: Iterable[Any]) -> str:
    """Shapes and types of a framework's tensors."""
    types = ((one, getattr(one.dtype, "__name__", None) or getattr(one.dtype, "name", one.dtype)) for one in tensors)
    return " and ".join(f"{tuple(one.shape)} {dtype}" for one, dtype in types) or "no targets"


def no_default_loss(task: UserTask, outputs: Any, targets: Iterable[Any]) -> UserError:
    """There are no losses(), and outputs and targets are not those of a classifier."""
    found = _describe([outputs]) if hasattr(outputs, "shape") else type(outputs).__name__
    return task.error(
        "model", f"has outputs and targets for which there is no default loss: {found} and {_describe(targets)}",
        "give the task a method losses, or logits (n, classes) and labels, int64 (n,)",
    )  # fmt: skip


def no_gradient(task: UserTask) -> UserError:
    """The losses do not depend on any parameter."""
    return task.error("losses", "returned losses without gradient", "compute them from the outputs")


def not_per_row(task: UserTask, method: str, values: Any, is_tensor: bool, rows: int) -> UserError:
    """A method returned something else than one value per row."""
    found = f"a tensor of shape {tuple(values.shape)}" if is_tensor else type(values).__name__
    remedy = f"return one value per row, ({rows},), not their mean or sum"
    return task.error(method, f"returned {found} for {rows} rows", remedy)


def named_metrics(task: UserTask, outputs: Any, targets: Iterable[Any]) -> dict[str, Any]:
    """What metrics() returns, by name. Raises UserError unless that is a dict."""
    found = task.call("metrics", outputs, *targets)
    if not isinstance(found, Mapping):
        raise task.error("metrics", f"returned {type(found).__name__}", "return a dict of tensors by name")
    return {str(name): value for name, value in found.items()}
