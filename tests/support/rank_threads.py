"""Ranks that are threads of this process, and their group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtrain.collectives.groups import AllreduceGroup


class ThreadGroup(AllreduceGroup):
    """One of several ranks. order: in which the values of ranks are added, by rank; None for ascending."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier, order: list[int] | None = None):
        self.rank, self.size, self._values, self._barrier = rank, len(values), values, barrier
        self._order = order or list(range(self.size))

    def gather(self, value):
        self._values[self.rank] = value
        self._barrier.wait(60)
        gathered = list(self._values)
        self._barrier.wait(60)
        return gathered

    def broadcast_bytes(self, values, root):
        values[:] = self.gather(values.copy())[root]

    def allreduce(self, values):
        values[...] = self.sum(values.copy())

    def exchange(self, name, vector, counts, lengths):
        assert len(vector) == sum(counts)
        gathered = self.gather((name, np.split(vector.copy(), np.cumsum(counts)[:-1])))
        assert {given for given, _ in gathered} == {name}
        received = [parts[self.rank] for _, parts in gathered]
        assert [len(part) for part in received] == lengths
        return np.concatenate(received)

    def sum(self, values):
        gathered = self.gather(values)
        total = gathered[self._order[0]].copy()
        for rank in self._order[1:]:
            total += gathered[rank]
        return total


def on_all_ranks(size: int, function: Callable[[ThreadGroup], Any], order: list[int] | None = None) -> list[Any]:
    """What the function returns on each of `size` ranks."""
    values, barrier, results = [None] * size, threading.Barrier(size), [None] * size

    def call(rank: int) -> None:
        try:
            results[rank] = function(ThreadGroup(rank, values, barrier, order))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
