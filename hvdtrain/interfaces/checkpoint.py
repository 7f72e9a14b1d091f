"""How far training is, and all that a run needs to be resumed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hvdtrain.interfaces.learner import AVERAGE, OptimizerState
from hvdtrain.networks.description import Weights


@dataclass(frozen=True)
class Position:
    """How far training is: decides the next batch and its learning rate.

    The order of samples is a function of (seed, epoch), so this is all the random state there is.
    """

    epoch: int = 0
    """Number of completed epochs."""
    rows_in_epoch: int = 0
    """Rows of this epoch's order that steps have taken; valid even if the batch size changes."""
    step: int = 0
    """Number of steps done in all epochs."""
    global_batch: int = 0
    """Rows per step over all ranks, by which `step` counts."""
    seed: int = 0
    best: float = 0.0
    """The best score so far, `Score.order`; 0 for none."""
    best_epoch: int = 0
    """Number of complete epochs when it was measured."""
    best_by: str = ""
    """`Score.choice` of it."""

    def after_step(self, samples: int) -> Position:
        """After one more step, of an epoch of so many rows."""
        rows = min(self.rows_in_epoch + self.global_batch, samples)
        return replace(self, step=self.step + 1, rows_in_epoch=rows)

    def scored(self, order: float, choice: str) -> Position:
        """After an evaluation at the end of an epoch, which may be done again. order, choice: of its `Score`."""
        if order <= self.best and choice == self.best_by:
            return self
        return replace(self, best=order, best_epoch=self.epoch, best_by=choice)

    def has_waited(self, patience: int) -> bool:
        """Whether so many epochs have passed since the one with the best score; never for 0."""
        return 0 < patience <= self.epoch - self.best_epoch


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to be resumed, and what identifies it."""

    weights: Weights
    optimizer: OptimizerState
    position: Position
    model: str
    network: dict[str, Any]
    """From `networks.record.shaped_to_record`."""
    framework: str
    optimizer_name: str
    data: str
    """Fingerprint of the training data."""
    score: float = 0.0
    """Greater is better; 0 if it was not measured: `Score.order`."""
    classes: tuple[str, ...] = field(default_factory=tuple)
    init: str = ""
    """How the weights were initialized."""
    arithmetic: dict[str, Any] = field(default_factory=dict)
    """With --shards, what decided the bits besides options and data: `training.arithmetic.record`."""
    other_ranks: tuple[Weights, ...] = ()
    """The optimizer's arrays of ranks 1, 2, ... where each rank has its own (`Learner.state_by_rank`), else empty."""
    score_choice: str = ""
    """The value of --score that the score is by; empty for accuracy or loss, which nobody chose."""

    @property
    def averages(self) -> Weights:
        """See `Learner.averages`."""
        return self.optimizer.under(AVERAGE)

    @property
    def evaluated(self) -> Weights:
        """What evaluations measured: the weights, with their averages where there are such."""
        return self.weights | self.averages
