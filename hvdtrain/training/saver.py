"""Saving the state of a run, when a checkpoint is due."""

from __future__ import annotations

import dataclasses
import time

from hvdtrain.collectives.arrays import gather_arrays
from hvdtrain.config.forms import Intervals
from hvdtrain.config.score import Score
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import Entry
from hvdtrain.system.phases import CHECKPOINT, phases
from hvdtrain.training import consistency
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import must_write

MAX_SHARE = 0.01
"""Share of the time that checkpoints by time may take: where one takes long, the next is later."""


class Saver:
    """Saves the state of a run. parent: the checkpoint that it resumed from.

    first: in a job that survives lost ranks, the number of the first checkpoint that the job may have written.
    """

    def __init__(self, run: RunContext, parent: Entry | None = None, first: int | None = None) -> None:
        self._run, self._parent, self._first = run, parent, first
        self.every = Intervals.parse(run.runtime.checkpoint_every)
        self._saved_at, self._took_s = time.monotonic(), 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint by time; each rank has its own answer."""
        interval_s = self.every.seconds
        return interval_s > 0 and max(interval_s, self._took_s / MAX_SHARE) <= time.monotonic() - self._saved_at

    def save(self, position: Position, score: Score | None = None) -> str:
        """Rank 0 writes a checkpoint; call it on every rank. score: None if it was not measured there.

        Returns the checksum of the weights that all ranks have in common.

        Raises TrainingError if a parameter is not finite, if ranks differ, or the disk does not accept the checkpoint.
        """
        phases.begin(CHECKPOINT)
        run, began = self._run, time.monotonic()
        weights = run.learner.weights()
        consistency.check_finite(weights, position.step, run.learner.untrained, run.not_finite_at_first)
        parameters, others = run.check_same_weights(position.step, weights=weights), self._other_ranks()
        if run.is_rank_0:
            run.lock.check()
            state = dataclasses.replace(run.checkpoint(position, weights, score), other_ranks=others)
            with must_write(f"the checkpoint of step {position.step}", run.folder):
                self._parent = self._written(position.step) or self._write(state)
        self._saved_at = time.monotonic()
        self._took_s = self._saved_at - began
        return parameters

    def _written(self, step: int) -> Entry | None:
        """The checkpoint of this step, if the ranks have changed after it was written, and all is done again."""
        if self._first is None:
            return None
        newest = checkpoint_folder.newest_whole(self._run.folder / "checkpoints")
        return newest if newest and newest.step == step and newest.written >= self._first else None

    def _write(self, state: Checkpoint) -> Entry | None:
        folder = self._run.folder / "checkpoints"
        return checkpoint_folder.entry_of(checkpoints.save(folder, state, self._run.runtime.keep, self._parent))

    def _other_ranks(self) -> tuple[Weights, ...]:
        """The arrays of the other ranks of which each rank has its own; on rank 0."""
        learner = self._run.learner
        local = learner.local_arrays()
        return tuple(gather_arrays(learner.group, local)[1:]) if local else ()
