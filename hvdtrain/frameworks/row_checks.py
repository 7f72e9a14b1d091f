"""Checks that what is found for a row depends on that row only, and that a cross entropy of logits gets logits."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.tasks.user import UserTask

ROUNDING = 1e-3
"""Relative difference of values that another number of rows, or another order, may round in another way, at most."""
TWO_SOFTMAXES = (
    "the model ends in a softmax, and the cross entropy takes a second one of its outputs, so it learns slowly: let it "
    "return logits"
)
BY_TASK, BY_SCRIPT = "give the task the attribute mixes_rows = True", "call setup() with mixes_rows=True"
"""What permits that rows are mixed."""
Find = Callable[[Any, Any], dict[str, Any]]
"""From outputs of a model and targets to values of each row, (n,), by names for messages."""


def mixed_rows(where: str, what: str, permission: str) -> UserError:
    """What is found for a row depends on other rows of its batch. where: what gave the model."""
    return UserError(
        f"{where}: {what} of a row depends on the other rows of its batch, or on its place in it, and so on the number "
        "of ranks",
        "compute each row by itself (outputs of shape (n, 1) with targets (n,) mix rows, and so do attention without "
        "batch_first=True, batch statistics, and noise of a fixed seed), or if rows belong together, as in contrastive "
        f"losses, {permission}",
    )


def changes_by_rows(where: str, name: str) -> UserError:
    """A model changes a parameter in another way for other rows. where: what gave the model, or called it."""
    return UserError(
        f"{where}: the model changes {name} when it is called, by the rows (as max_norm does) or at random, so that "
        "each rank, device or shard would train another network",
        "use --strategy single, without --shards",
    )


def not_trained(where: str, tensor: Any, freezing: str) -> UserError:
    """Losses have a gradient for a tensor that is no parameter. where: what gave them. freezing: takes it away."""
    return UserError(
        f"{where}: the losses have a gradient for a tensor of shape {tuple(tensor.shape)} that is kept from step to "
        "step, and is no parameter of the model: nothing would train, save or compare it",
        f"make it a parameter of the model, which can return it among its outputs, or give it {freezing}; inputs may "
        "ask for gradients in each call",
    )


def examine(task: UserTask, find: Find, outputs: Any, targets: Any, losses: Any, rows: int) -> None:
    """Of the first outputs: raise UserError if what is found for a row depends on others; advise on probabilities."""
    if len(targets) == 1 and is_of_probabilities(outputs, targets[0], losses):
        task.advice.append(f"--model {task.name}: {TWO_SOFTMAXES}")
    if not task.mixes_rows and (mixed := mixing(find, outputs, targets, rows)):
        raise mixed_rows(f"--model {task.name}", mixed, BY_TASK)


def mixing(find: Find, outputs: Any, targets: Any, rows: int) -> str:
    """The name of what depends on other rows among what is found in outputs and targets of n rows; empty for nothing.

    What differs from call to call is random, and says nothing. One of several outputs may have n of something else.
    """
    try:
        every, again = find(outputs, targets), find(outputs, targets)
        first = _first_row(targets, rows)
        mixed = _differing(every, again, find(_first_row(outputs, rows), first))
    except Exception:  # it takes no single row
        return ""
    parts = _of_rows(outputs, rows) if mixed else []
    for part in parts if len(parts) > 1 else []:
        with contextlib.suppress(Exception):
            if not _differing(every, again, find(_first_row(outputs, rows, part), first)):
                return ""
    return mixed


def _differing(every: dict[str, Any], again: dict[str, Any], alone: dict[str, Any]) -> str:
    """The name of the first values of which those of a row alone are not the first of all, found twice."""
    for name, values in every.items():
        of_all, repeated, of_one = map(to_numpy, (values, again[name], alone[name]))
        if np.array_equal(of_all, repeated) and not np.allclose(of_all[:1], of_one, ROUNDING, ROUNDING**2):
            return name
    return ""


def _first_row(values: Any, rows: int, whole: Any = None) -> Any:
    """The first row of tensors of so many rows, in mappings, sequences and objects; `whole` stays as it is."""
    if isinstance(values, Mapping):
        return {name: _first_row(value, rows, whole) for name, value in values.items()}
    if isinstance(values, tuple | list):
        return [_first_row(value, rows, whole) for value in values]
    if not hasattr(values, "shape") and hasattr(values, "__dict__"):
        made = copy.copy(values)
        vars(made).update(_first_row(vars(values), rows, whole))
        return made
    return with_mask(values[:1], values, slice(1)) if values is not whole and _of_rows(values, rows) else values


def with_mask(made: Any, outputs: Any, rows: slice = slice(None)) -> Any:
    """A tensor made of these rows of a model's outputs, with the mask by which Keras' losses leave out padding."""
    if (mask := getattr(outputs, "_keras_mask", None)) is not None:
        made._keras_mask = mask[rows]
    return made


def _of_rows(values: Any, rows: int) -> list[Any]:
    """The tensors of so many rows, in mappings and sequences."""
    if isinstance(values, Mapping | tuple | list):
        parts = values.values() if isinstance(values, Mapping) else values
        return [tensor for part in parts for tensor in _of_rows(part, rows)]
    return [values] if tuple(getattr(values, "shape", ()))[:1] == (rows,) else []


def is_of_probabilities(*tensors: Any) -> bool:
    """Whether outputs, (n, classes), are those of a softmax, and losses, (n,), their cross entropy as if of logits.

    tensors: outputs, labels and losses.
    """
    shape, *others = (tuple(getattr(tensor, "shape", ())) for tensor in tensors)
    if len(shape) != 2 or shape[1] < 2 or any(other != shape[:1] for other in others):
        return False  # and copies nothing, as of logits of each token
    if not is_real(tensors[0]):
        return False
    try:
        outputs, labels, losses = map(to_numpy, tensors)
    except Exception:  # such as sparse or quantized tensors
        return False
    is_label = (labels % 1 == 0) & (labels >= 0) & (labels < outputs.shape[1])
    if not is_label.all() or outputs.min() < 0 or abs(outputs.sum(1) - 1).max() > 10 * ROUNDING:
        return False
    chosen = outputs[np.arange(len(labels)), labels.astype(np.int64)]
    return np.allclose(losses, np.log(np.exp(outputs).sum(1)) - chosen, 10 * ROUNDING)


def to_numpy(values: Any) -> np.ndarray:
    """A tensor of any framework, as float64; of something else, an array without rows."""
    if hasattr(values, "asnumpy"):
        return values.asnumpy().astype(np.float64)
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values, np.float64) if hasattr(values, "shape") else np.zeros(())


class FirstOutputs:
    """What a script's model returns in the first step, for rows in these arrays."""

    def __init__(self, model: Any, arrays: tuple[np.ndarray, ...]) -> None:
        self._hook = _Kept([])
        self._labels = [array for array in arrays if array.dtype.kind in "iu"]
        hook = model.register_forward_hook(self._hook)
        self._unhook = hook.remove if hasattr(hook, "remove") else hook.detach

    def end(self, losses: Any) -> str:
        """What is probably wrong with the losses of the step; empty for nothing."""
        self._unhook()
        given = ((outputs, labels) for outputs in self._hook.outputs or () for labels in self._labels)
        is_wrong = any(is_of_probabilities(outputs, labels, losses) for outputs, labels in given)
        return f"step(): {TWO_SOFTMAXES}" if is_wrong else ""


class _Kept:
    """A hook that keeps what a model returns; that of a copy of the model, as of averaged weights, keeps nothing."""

    def __init__(self, outputs: list[Any] | None = None) -> None:
        self.outputs = outputs

    def __call__(self, model: Any, inputs: Any, outputs: Any) -> None:
        if self.outputs is not None:
            self.outputs.append(outputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, ()


def is_real(values: Any) -> bool:
    """Whether a tensor has no complex numbers, whose imaginary part a cast to float32 would drop."""
    return "complex" not in str(values.dtype)
