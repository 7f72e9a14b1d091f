"""Horovod Elastic: ranks come and go, and training goes on in the processes that stay.

Horovod calls the training again after each change, with new ranks. What it then needs is in `Kept`, in this process's
memory: no step since its last commit counts, so no sample is lost and none is taken twice.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path

from horovod.common.elastic import State

from hvdtrain.config.options import Framework
from hvdtrain.interfaces import Checkpoint, Group


class Kept(State):
    """A `checkpoint.Memory`, and what Horovod's driver tells of hosts."""

    def __init__(self) -> None:
        self.saved: tuple[Path, Checkpoint] | None = None
        self._group: Group | None = None
        super().__init__(bcast_object=self._broadcast, get_rank=None)

    def _broadcast(self, value: object) -> object:
        assert self._group
        return self._group.broadcast(value)

    def commit(self, group: Group, folder: Path, checkpoint: Checkpoint) -> None:
        optimizer = checkpoint.optimizer
        arrays = {name: array.copy() for name, array in optimizer.arrays.items()}
        weights = {name: array.copy() for name, array in checkpoint.weights.items()}
        kept = dataclasses.replace(checkpoint, weights=weights, optimizer=optimizer._replace(arrays=arrays))
        self._group, self.saved = group, (folder, kept)
        self.check_host_updates()

    def save(self) -> None:
        """`commit` has done it."""

    def restore(self) -> None:
        """The training that is called next takes what is kept."""

    def sync(self) -> None:
        """It broadcasts that as well, when its ranks have met."""


def run(framework: Framework, train: Callable[[Kept], Path]) -> Path:
    """What `train` returns when it ends without a rank lost or hosts changed."""
    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    return importlib.import_module(f"horovod.{framework}.elastic").run(train)(Kept())
