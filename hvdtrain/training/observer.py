"""What the loop announces to those who only watch it: records, progress, step times, timeline and watchdog."""

from __future__ import annotations

from typing import NamedTuple

from hvdtrain.collectives.surviving import RanksChange
from hvdtrain.interfaces.learner import Position
from hvdtrain.training.evaluation import Evaluation
from hvdtrain.training.ranks import LoggedInterval


class Pause(NamedTuple):
    """A change of the ranks, for which this rank did not train."""

    change: RanksChange
    seconds: float
    repeated: int
    """Number of steps that this rank had begun, and that are done again: 0 or 1."""


class Observer:
    """Watches the loop of `TrainingLoop`; each method is called on every rank, in the thread that trains.

    Because all ranks call it, an observer may exchange values between them. at: where training is.

        started                     again after `renewed`, which may come at any point
        for each epoch:
            for each step:
                step_done
                joined              at a logging step
                saved               at a checkpoint
                step_ended          except for the last step of an epoch
            joined
            evaluating              after each batch of the evaluation
            evaluated
            saved
            step_ended
        ended
    """

    def started(self, at: Position) -> None:
        """The first step comes next."""

    def step_done(self, at: Position) -> None:
        """A step was trained."""

    def joined(self, at: Position, interval: LoggedInterval) -> None:
        """A logging step: the ranks have exchanged what they computed since the one before."""

    def evaluating(self, at: Position, batches: int) -> None:
        """So many batches of the evaluation are done on this rank."""

    def evaluated(self, at: Position, evaluation: Evaluation) -> None:
        """The evaluation is done on all ranks."""

    def saved(self, at: Position, parameters: str) -> None:
        """A checkpoint was written. parameters: the checksum of the common weights."""

    def renewed(self, at: Position, pause: Pause) -> None:
        """The ranks have changed, and training goes on here."""

    def step_ended(self, at: Position) -> None:
        """The step has ended, with all that is due after it."""

    def ended(self, at: Position) -> None:
        """No more steps follow: all are done, or the job stops."""
