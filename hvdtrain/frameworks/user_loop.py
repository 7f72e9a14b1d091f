"""The learner of a user's script that has a loop of its own: what is the same in all frameworks."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, SupportsFloat

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.interfaces import Batch, Evaluated, Learner
from hvdtrain.system.recorder import SCRIPT
from hvdtrain.tasks.target import step_seeds


class UserLearner(Learner):
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
    _evaluate: Callable[..., Any]
    _has_state = False
    """Whether the optimizer has made a step, or its state was loaded."""

    @abc.abstractmethod
    def setup(self, model: Any, optimizer: Any, unused_parameters: bool) -> tuple[Any, Any]:
        """The model and the optimizer that the script uses from then on. Raises UserError if they do not fit.

        unused_parameters: whether parameters may get no gradient in a step.
        """

    @abc.abstractmethod
    def register(self, states: dict[str, Any]) -> None:
        """Objects whose state_dict() belongs to that of the optimizer, by name. Raises UserError if it cannot be."""

    @property
    @abc.abstractmethod
    def learning_rate(self) -> float:
        """That of the optimizer's first parameter group."""

    @abc.abstractmethod
    def step(self, losses: Any) -> SupportsFloat:
        """Train on the losses of the prepared batch's rows; returns what `train_step` returns.

        Raises UserError for losses that are not a value for each row.
        """

    def prepare(self, batch: Batch) -> tuple[Any, ...]:
        """The arrays of the batch on the device, with which the script then computes the losses."""
        # By step and rank, so that a resumed run draws the same numbers.
        seeds = step_seeds(self._seed, batch.step, self.group.rank)
        self._seed_generators(int(seeds.generate_state(1, np.uint64)[0]))
        self._row_weights = batch.weights
        return self._on_device(batch.arrays)

    def evaluate_by(self, function: Callable[..., Any]) -> None:
        """Evaluate by a function of the script: from arrays to losses, or to losses and a dict of metrics, by row."""
        self._evaluate = function

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        result, rows = self._evaluate(*self._on_device(arrays)), len(arrays[0])
        losses, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(metrics, Mapping):
            raise UserError(f"evaluate() returned metrics of type {type(metrics).__name__}", "return a dict of them")
        for name, values in {"": losses, **metrics}.items():
            self._check_by_row(f"evaluate(), {name}" if name else "evaluate()", values, rows)
        return Evaluated(self._total(losses), {str(name): self._total(values) for name, values in metrics.items()})

    def _check_by_row(self, what: str, values: Any, rows: int) -> None:
        """Raise UserError unless these are a tensor with a value for each row."""
        shape = tuple(values.shape) if isinstance(values, self.tensor) else None
        if shape != (rows,):
            given = type(values).__name__ if shape is None else f"a tensor of shape {shape}"
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
