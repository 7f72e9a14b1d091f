"""Saving the state of a run, when a checkpoint is due."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from hvdtrain.collectives.arrays import gather_arrays
from hvdtrain.config.forms import Intervals
from hvdtrain.config.score import Score
from hvdtrain.interfaces.learner import Position
from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints
from hvdtrain.runs.checkpoints import FileHash
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.phases import CHECKPOINT, phases
from hvdtrain.training import consistency
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import must_write

MAX_SHARE = 0.01
"""Share of the time that checkpoints by time may take: where one takes long, the next is later."""


class Saver:
    def __init__(self, run: RunContext) -> None:
        self._run, self._folder = run, run.folder / "checkpoints"
        self._first = checkpoint_folder.next_number(self._folder) if run.group.survives else 0
        """In a job that survives lost ranks, the number of the first checkpoint that it may have written."""
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
        parameters = run.check_same_weights(position.step, weights=weights)
        if run.is_rank_0:
            run.lock.check()
        with must_write(f"the checkpoint of step {position.step}", run.folder):
            is_written = run.is_rank_0 and self._is_written(position.step)
            draft, own, others = self._write_own(position.step, is_written)
            if run.is_rank_0 and not is_written:
                state = dataclasses.replace(run.checkpoint(position, weights, score), other_ranks=others)
                checkpoints.save(self._folder, state, run.runtime.keep, draft, own)
        self._saved_at = time.monotonic()
        self._took_s = self._saved_at - began
        return parameters

    def _is_written(self, step: int) -> bool:
        """Whether there is a checkpoint of this step, as the ranks have changed after that, and all is done again."""
        newest = checkpoint_folder.newest_whole(self._folder) if self._run.group.survives else None
        return bool(newest and newest.step == step and newest.written >= self._first)

    def _write_own(self, step: int, is_written: bool) -> tuple[Path | None, list[FileHash | None], tuple[Weights, ...]]:
        """Have each other rank write what it has by itself into the checkpoint's folder, or send it to rank 0.

        is_written: whether rank 0 has the checkpoint already. Returns that folder, and by rank from 1 on the hash of
        the file, or on rank 0 the arrays. Without any, nothing.
        """
        learner = self._run.learner
        group, local = learner.group, learner.local_arrays()
        if not local or group.size == 1:
            return None, [], ()
        begun = str(checkpoints.begin(self._folder, step)) if group.rank == 0 and not is_written else ""
        if not (begun := group.broadcast(begun)):
            return None, [], ()
        draft = Path(begun)
        written = checkpoints.write_own(draft, group.rank, local) if group.rank else None
        others = gather_arrays(group, {} if written else local)[1:]
        return draft, group.gather(written)[1:], tuple(others)
