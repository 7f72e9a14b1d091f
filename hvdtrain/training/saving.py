"""Writing what must not be lost: checkpoints on disk, and the state that an elastic job keeps in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.collectives.arrays import gather_arrays
from hvdtrain.errors import FolderLost, WriteError
from hvdtrain.interfaces import ElasticMemory, Position
from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import Entry
from hvdtrain.system.phases import CHECKPOINT, phases
from hvdtrain.training import consistency
from hvdtrain.training.run import Run

MAX_SHARE = 0.01
"""Share of the time that checkpoints by --checkpoint-seconds may take: where one takes long, the next is later."""


@contextlib.contextmanager
def must_write(what: str, folder: Path) -> Iterator[None]:
    """Turn an OSError into an error about `what`, in the run's folder.

    Raises WriteError if the disk does not accept it, FolderLost if the folder is gone: a job started again would
    then train from the beginning.
    """
    try:
        yield
    except OSError as error:
        reason, resume = f"{what} cannot be written ({error.strerror or error})", f"resume with --resume {folder}"
        if not os.path.isdir(folder):
            raise FolderLost(f"{reason}, as {folder} is gone", f"bring it back, then {resume}") from None
        raise WriteError(
            reason, f"earlier checkpoints are complete: free disk space or repair the disk, then {resume}"
        ) from None


class Saver:
    """Saves the state of a run. memory: of an elastic job, else None. parent: the checkpoint that it resumed from."""

    def __init__(self, run: Run, memory: ElasticMemory | None = None, parent: Entry | None = None) -> None:
        self._run, self._memory, self._parent = run, memory, parent
        self._saved_at, self._took_s = time.monotonic(), 0.0
        if memory and parent:  # ranks that stay when hosts change know the state that they continue, not its parent
            with must_write("the branch that this job leaves", run.folder):
                checkpoints.leave_branch(run.folder / "checkpoints", parent)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint by --checkpoint-seconds; each rank has its own answer."""
        interval_s = self._run.runtime.checkpoint_seconds
        return interval_s > 0 and max(interval_s, self._took_s / MAX_SHARE) <= time.monotonic() - self._saved_at

    def save(self, position: Position, score: float = 0.0) -> None:
        """Rank 0 writes a checkpoint; call it on every rank. score: test accuracy, 0 if it was not measured there.

        Raises TrainingError if a parameter is not finite or the disk does not accept the checkpoint.
        """
        phases.begin(CHECKPOINT)
        run, began = self._run, time.monotonic()
        weights = run.learner.weights()
        consistency.check_finite(weights, position.step, run.learner.local_weights)
        others = self._other_ranks()
        if run.is_rank_0:
            run.lock.check()
            state = dataclasses.replace(run.checkpoint(position, weights, score), other_ranks=others)
            with must_write(f"the checkpoint of step {position.step}", run.folder):
                path = checkpoints.save(run.folder / "checkpoints", state, run.runtime.keep, self._parent)
            self._parent = checkpoint_folder.entry_of(path)
        self._saved_at = time.monotonic()
        self._took_s = self._saved_at - began

    def _other_ranks(self) -> tuple[Weights, ...]:
        """The optimizer's arrays of the other ranks, where each rank has its own; on rank 0."""
        learner = self._run.learner
        if not learner.state_by_rank:
            return ()
        return tuple(gather_arrays(learner.group, learner.optimizer_state().arrays)[1:])

    def commit(self, position: Position) -> None:
        """In an elastic job: keep the state in memory, and leave training by Horovod's exception if hosts changed."""
        if self._memory:
            state = self._run.checkpoint(position, self._run.learner.weights())
            self._memory.commit(self._run.group, self._run.folder, state)
