"""Horovod Elastic: ranks are added and lost, and training continues in the remaining processes.

After each change, Horovod calls the training function again with the new ranks. The function finds the last committed
state in `ElasticState`, in this process's memory. Steps after the last commit are discarded, so no sample is lost and
none is used twice.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path

from horovod.common.elastic import State
from horovod.common.exceptions import HorovodInternalError

from hvdtrain.config.options import Framework
from hvdtrain.errors import RankRemoved
from hvdtrain.interfaces import Checkpoint, Group


class ElasticState(State):
    """The last committed checkpoint (an `ElasticMemory`), which also receives host changes from Horovod's driver."""

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
        copied = dataclasses.replace(checkpoint, weights=weights, optimizer=optimizer._replace(arrays=arrays))
        self._group, self.saved = group, (folder, copied)
        self.check_host_updates()

    def save(self) -> None:
        """Nothing to do: `commit` copies the state."""

    def restore(self) -> None:
        """Nothing to do: the next call of the training function reads `saved`."""

    def sync(self) -> None:
        """Nothing to do: the next call of the training function broadcasts `saved` to its ranks."""


def run(framework: Framework, train: Callable[[ElasticState], Path]) -> Path:
    """What `train` returns when it ends without losing a rank or changing hosts.

    Raises RankRemoved if the job continues without this rank.
    """
    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    if framework == "tensorflow":
        train = _reporting_lost_ranks(train)
    try:
        return importlib.import_module(f"horovod.{framework}.elastic").run(train)(ElasticState())
    except ValueError as error:  # of the init() after a change of hosts
        if "has been removed from elastic job" not in str(error):
            raise
        raise RankRemoved("this host was removed from the job, which continues on the others") from None


def _reporting_lost_ranks(train: Callable[[ElasticState], Path]) -> Callable[[ElasticState], Path]:
    """`train`, which raises Horovod's exception for each operation of TensorFlow that fails because of a lost rank.

    Horovod's own run() does so for three operations. It takes an UnknownError of another one, such as the grouped
    allreduce, for the end of training.
    """
    from tensorflow.errors import UnknownError

    def reporting(memory: ElasticState) -> Path:
        try:
            return train(memory)
        except UnknownError as error:
            lost = "Horovod" in error.message
            raise (HorovodInternalError if lost else RuntimeError)(error.message) from error

    return reporting
