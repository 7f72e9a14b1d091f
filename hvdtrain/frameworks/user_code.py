"""What a user's code gives to a learner: the model and outputs of a task, and the losses of a script with its own loop.

The errors, and the checks that need no tensors, are the same for all frameworks.
"""

from __future__ import annotations

import abc
import itertools
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from hvdtrain.collectives.audits import hash_shard
from hvdtrain.config.options import MAX_SHARDS, Framework
from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import pad_rows
from hvdtrain.frameworks.engine import Engine
from hvdtrain.frameworks.row_checks import FirstOutputs, changes_by_rows, examine, is_real
from hvdtrain.interfaces.combining import Gradients, StepLoss
from hvdtrain.interfaces.learner import Evaluated
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights, changed_names
from hvdtrain.system.phases import SCRIPT
from hvdtrain.tasks.target import step_seed
from hvdtrain.tasks.user import UserTask

MODELS: dict[Framework, str] = {
    "torch": "a torch.nn.Module",
    "tensorflow": "a tf.keras.Model",
    "mxnet": "a gluon.Block",
}
"""What model() returns."""
PACKAGES: dict[str, Framework] = {"torch": "torch", "mxnet": "mxnet", "keras": "tensorflow", "tensorflow": "tensorflow"}
"""The packages whose classes a framework's models derive from."""


class TaskOutputs:
    """Losses and metrics of a task's outputs, by row. Each framework's objective of tasks derives from it."""

    tensor: ClassVar[type[Any]]
    """The framework's class of tensors."""
    int64: ClassVar[Any]
    """Its type of labels."""
    _task: UserTask

    def eval_rows(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The rows of an evaluation, and others where the model takes no smaller number."""
        return pad_rows(self._task.needed_rows or 1, *arrays)

    def _split(self, rows: Any) -> tuple[Any, Any]:
        """The inputs of the model among tensors of rows, and the targets."""
        return rows[: self._task.inputs], rows[self._task.inputs :]

    def _losses_of(self, outputs: Any, targets: Any) -> Any:
        """The loss of each row, (n,). Raises UserError for losses of another shape, and if there are none."""
        if self._task.has("losses"):
            return self._by_row("losses", self._task.call("losses", outputs, *targets), outputs, targets)
        logits = isinstance(outputs, self.tensor) and self._dimensions(outputs) == 2
        if logits and len(targets) == 1 and targets[0].dtype == self.int64 and self._dimensions(targets[0]) == 1:
            self._task.labels.expect(outputs.shape[1])
            return self._cross_entropy(outputs, targets[0])
        raise no_default_loss(self._task, outputs, targets)

    def _metrics_of(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """The metrics of each row, (n,), by name. Raises UserError for metrics of another shape."""
        if not self._task.has("metrics"):
            return {} if self._task.has("losses") else {"accuracy": self._is_right(outputs, targets[0])}
        metrics = self._task.call("metrics", outputs, *targets)
        if not isinstance(metrics, Mapping):
            problem = f"returned {type(metrics).__name__}"
            raise self._task.error("metrics", problem, "return a dict of tensors by name")
        return {str(name): self._by_row("metrics", value, outputs, targets) for name, value in metrics.items()}

    def _examine(self, outputs: Any, targets: Any, losses: Any) -> None:
        examine(self._task, self._found, outputs, targets, losses, self._count_rows(targets or outputs))

    def _found(self, outputs: Any, targets: Any) -> dict[str, Any]:
        metrics = self._metrics_of(outputs, targets)
        found = {f"the metric {name}": values for name, values in metrics.items()}
        return {"the loss": self._losses_of(outputs, targets), **found}

    def _by_row(self, method: str, values: Any, outputs: Any, targets: Any) -> Any:
        """The values that a method returned, if there is one for each row."""
        rows, is_tensor = self._count_rows(targets or outputs), isinstance(values, self.tensor)
        if is_tensor and self._has_shape(values, rows) and is_real(values):
            return values
        given = describe_values(values) if is_tensor else type(values).__name__
        remedy = f"return one value per row, ({rows},), not their mean or sum"
        raise self._task.error(method, f"returned {given} for {rows} rows", remedy)

    def _has_shape(self, values: Any, rows: Any) -> bool:
        """Whether values are of shape (rows,)."""
        return tuple(values.shape) == (rows,)

    def _count_rows(self, outputs: Any) -> Any:
        """Number of rows of a tensor, or of the first one that has rows in a mapping, sequence or object."""
        for one in itertools.islice(waiting := [outputs], 1000):  # which grows, perhaps without an end
            if isinstance(one, self.tensor) and self._dimensions(one) != 0:
                return one.shape[0]
            named = one if isinstance(one, Mapping) else getattr(one, "__dict__", {})
            waiting += one if isinstance(one, list | tuple) else named.values()
        raise self._task.error("model", "returned no tensor with rows", "return one, or give losses() targets")

    @staticmethod
    def _dimensions(values: Any) -> int | None:
        """Number of dimensions."""
        return len(values.shape)

    @staticmethod
    def _cross_entropy(logits: Any, labels: Any) -> Any:
        """Of each row, (n,), from logits (n, classes) and labels, int64 (n,)."""
        raise NotImplementedError

    @staticmethod
    def _is_right(logits: Any, labels: Any) -> Any:
        """Whether the greatest logit of each row is that of its label."""
        raise NotImplementedError


def describe_values(values: Any) -> str:
    """What a method has returned, by its shape."""
    return f"a {'' if is_real(values) else 'complex '}tensor of shape {tuple(values.shape)}"


def no_model(task: UserTask, model: Any, framework: Framework) -> UserError:
    """model() returned what this framework cannot train."""
    packages = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    known = next((PACKAGES[package] for package in packages if package in PACKAGES), framework)
    remedy = f"use --framework {known}" if known != framework else f"return {MODELS[framework]}"
    return task.error("model", f"returned {type(model).__name__}, and --framework is {framework}", remedy)


def nothing_to_train(task: UserTask) -> UserError:
    """The model has no trainable parameters."""
    return task.error("model", "returned a model without trainable parameters", "return one that can learn")


def failing_model(task: UserTask, inputs: Iterable[Any], error: Exception, message: str = "") -> UserError:
    """The model does not take these arrays. Raises the error itself where it is the end of a debugger.

    message: what the error says, if not all of its text.
    """
    if isinstance(error, BdbQuit):
        raise error
    shapes = _describe(inputs)
    problem = f"returned a model that fails on inputs {shapes} ({' '.join((message or str(error)).split()):.300})"
    remedy = "let it take the first array(s) of data()'s rows, and as many as a rank gets"
    if "float64" in shapes:
        remedy = "let data() return float32 rows, by .astype(np.float32)"
    return task.error("model", problem, remedy)


def _describe(tensors: Iterable[Any]) -> str:
    """Shapes and types of a framework's tensors."""
    types = ((tensor.shape, tensor.dtype) for tensor in tensors)
    names = ((shape, getattr(kind, "__name__", None) or getattr(kind, "name", kind)) for shape, kind in types)
    return " and ".join(f"{tuple(shape)} {name}" for shape, name in names) or "no targets"


def no_default_loss(task: UserTask, outputs: Any, targets: Iterable[Any]) -> UserError:
    """There are no losses(), and outputs and targets are not those of a classifier."""
    given = _describe([outputs]) if hasattr(outputs, "shape") else type(outputs).__name__
    return task.error(
        "model", f"has outputs and targets for which there is no default loss: {given} and {_describe(targets)}",
        "give the task a method losses, inputs = 2 for two inputs, or logits (n, classes) and labels, int64 (n,)",
    )  # fmt: skip


def no_gradient(task: UserTask) -> UserError:
    """The losses do not depend on any parameter."""
    return task.error("losses", "returned losses without gradient", "compute them from the outputs")


class UserLearner(Engine):
    """A learner whose model, optimizer and losses are those of a user's script; it begins without them.

    The script calls `setup`, then for each batch `prepare` and, with its losses, `step`. A framework's learner
    makes the step of these losses as its own one, and overrides the methods that know tensors.
    """

    between_steps = SCRIPT
    tensor: ClassVar[type[Any]]
    """The framework's class of tensors."""
    _seed: int
    _row_weights: np.ndarray
    """Of the prepared batch."""
    _finish_step: Callable[[], None]
    _before: Weights | None = None
    """With --shards, the weights before a forward pass of the steps in `_compared`."""
    _compared: tuple[int, ...] = ()
    _evaluate: Callable[..., Any]
    _is_stepping = False
    """Whether gradients and updates are those of `step`, and not the script's own."""
    _has_state = False
    """Whether the optimizer has made a step, or its state was loaded."""
    _called: Any
    """The model that the script calls, once it is set up."""
    _first: FirstOutputs | None = None
    """In the first step."""
    _has_begun = False
    advice = ""
    """What is probably wrong with the script, as its first step has shown."""
    ended_epochs = 0
    """Number of epochs after which the script has done what it does at their end, if it has a loop over epochs."""

    @property
    def _progress(self) -> dict[str, Any]:
        """What a checkpoint has besides the state of the optimizer, `OptimizerState.extra`: read it by `_continue`."""
        return {"length": self.length} | ({"ended_epochs": self.ended_epochs} if self.ended_epochs else {})

    def _continue(self, extra: Mapping[str, Any]) -> None:
        self.ended_epochs = int(extra.get("ended_epochs", 0))

    @abc.abstractmethod
    def setup(self, model: Any, optimizer: Any, unused_parameters: bool) -> tuple[Any, Any]:
        """The model and the optimizer that the script uses from then on. Raises UserError if they do not fit.

        unused_parameters: whether parameters may get no gradient in a step.
        """

    @abc.abstractmethod
    def register(self, states: dict[str, Any]) -> None:
        """Objects whose state_dict() belongs to that of the optimizer, by name. Raises UserError if it cannot be."""

    def schedule_steps(self) -> dict[str, int]:
        """How often each registered schedule has made a step, by name."""
        return {}

    @property
    @abc.abstractmethod
    def learning_rate(self) -> float:
        """That of the optimizer's first parameter group."""

    @abc.abstractmethod
    def step(self, losses: Any, ends_step: bool) -> StepLoss:
        """Train on the losses of the prepared batch's rows; returns what `train_step` does, if the step ends.

        ends_step: whether the update follows, or another shard of the step. Raises UserError for losses that are not a
        value for each row.
        """

    @abc.abstractmethod
    def take_gradients(self, loss: Any) -> list[Gradients]:
        """What the backward pass of a part has left, or leaves to `late_gradients`. loss: see `Gradients`."""

    def prepare(self, batch: Batch) -> tuple[Any, ...]:
        """The arrays of the batch, or of a shard, on the device, with which the script then computes the losses."""
        if self._in_shards and len(self._compared) < 2 and batch.step not in self._compared:
            self._compared, self._before = (*self._compared, batch.step), self.weights()
        self.seed(batch.step, batch.part)  # so that a resumed run draws the same numbers
        self._step, self._row_weights, self._is_stepping = batch.step, batch.weights, False
        if not self._has_begun:
            self._first, self._has_begun = FirstOutputs(self._called, batch.arrays), True
        return self._on_device(batch.arrays)

    def _examine_first(self, losses: Any) -> None:
        """In the first step: learn what is probably wrong with its losses."""
        if self._first:
            self.advice, self._first = self._first.end(losses), None

    def _check_own_changes(self) -> None:
        """In the first step, before its update: raise UserError if forward passes give ranks or shards other weights.

        With --shards for any change, also in the second step, as the first weights may have a norm already.
        """
        before, self._before = self._before, None
        if before and (changed := changed_names(before, self.weights()) - self.untrained):
            problem = f"the model changes {min(changed)} when it is called, so each shard would begin with another one"
            raise UserError(f"step(): {problem}", "leave out --shards")
        if self._step or self._in_shards or self.group.size == 1:
            return
        hashes = {name: hash_shard(0.0, [value]) for name, value in self.weights().items()}
        of_ranks = self.group.gather({name: hashes[name] for name in hashes.keys() - self.local_weights})
        if names := [name for name in of_ranks[0] if any(its.get(name) != of_ranks[0][name] for its in of_ranks)]:
            raise changes_by_rows("step()", min(names))

    def _end_backward(self, loss: StepLoss, ends_step: bool) -> StepLoss:
        """Combine the gradients and update the parameters, with --shards after the last shard of a step."""
        if self._combiner:
            self.add(self.take_gradients(loss))
            if not ends_step:
                return []
        self.seed(self._step, self._config.shards or MAX_SHARDS)  # what follows draws the same on all ranks
        if self._combiner:
            return self.end_step()
        self._finish_step()
        return loss

    def _refuse(self, what: str) -> None:
        """Raise UserError unless it is `step` that does this: the ranks would not combine it, or make it twice."""
        if not self._is_stepping:
            remedy = (
                "give run.step() all losses by row, such as losses + penalty, and take others by autograd.grad(); for "
                "larger steps give a larger --batch-size, which --shards N takes in N parts"
            )
            raise UserError(f"the script calls {what}, which run.step(losses) does", remedy)

    def seed(self, step: int, part: int) -> None:
        self._seed_generators(step_seed(self._seed, step, part))

    def evaluate_by(self, function: Callable[..., Any]) -> None:
        """Evaluate by a function of the script: from arrays to losses, or to losses and a dict of metrics, by row."""
        self._evaluate = function

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        result, rows = self._evaluate(*self._on_device(arrays)), len(arrays[0])
        losses, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(metrics, Mapping):
            raise UserError(f"evaluate() returned metrics of type {type(metrics).__name__}", "return a dict of them")
        self._check_by_row("evaluate()", losses, rows)
        for name, values in metrics.items():
            self._check_by_row(f"evaluate(), {name}", values, rows)
        sums = {str(name): self._total(values) for name, values in metrics.items()}
        return Evaluated(self._total(losses), sums, losses=lambda: self._array(losses))

    def _check_by_row(self, what: str, values: Any, rows: int) -> None:
        """Raise UserError unless these are a tensor with a value for each row."""
        shape = tuple(values.shape) if isinstance(values, self.tensor) else None
        if shape != (rows,) or not is_real(values):
            given = type(values).__name__ if shape is None else describe_values(values)
            if shape == (rows, rows):
                given += ", as outputs (n, 1) and targets (n,) make it"
            raise UserError(
                f"{what}: got {given}, not a value for each of {rows} row(s)",
                "give a tensor of one dimension; losses of PyTorch are one with reduction='none', "
                "those of Gluon always",
            )

    @staticmethod
    @abc.abstractmethod
    def _seed_generators(seed: int) -> None:
        """Seed the generators that a user's code draws from. seed: below 2^64."""

    @abc.abstractmethod
    def _on_device(self, arrays: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        """Copies of the arrays on the device."""

    @staticmethod
    @abc.abstractmethod
    def _total(values: Any) -> float:
        """The sum of a tensor in float64."""

    @staticmethod
    @abc.abstractmethod
    def _array(values: Any) -> np.ndarray:
        """A tensor on the host."""
