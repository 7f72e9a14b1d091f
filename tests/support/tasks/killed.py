"""A task, in the framework FRAMEWORK, whose last rank is killed once if KILL_ONCE names a file, which is then made."""

import importlib
import os
import signal
from pathlib import Path

from hvdtrain.system import rank_info

READS = 6
"""Batches that the rank reads before, those that are only looked at included."""


class FatalRows:
    fingerprint = "the same in all runs"

    def __init__(self, arrays):
        self.arrays, self.reads = arrays, 0

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, rows):
        self.reads += 1
        rank, mark = rank_info.detect(), os.environ.get("KILL_ONCE")
        if mark and self.reads > READS and rank.rank == rank.size - 1 and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return tuple(array[rows] for array in self.arrays)


class Killed(importlib.import_module(f"of_{os.environ['FRAMEWORK']}").Regression):
    def data(self):
        train, test = super().data()
        return FatalRows(train), test
