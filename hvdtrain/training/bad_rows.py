"""Rows that could not be read and were skipped (`--on-bad-row skip`): named once, and counted over all ranks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from hvdtrain.datasets.reader import Part
from hvdtrain.datasets.sources.rows import RowError
from hvdtrain.interfaces import Group
from hvdtrain.runs.console import log_to_file


class BadRows:
    """This rank's bad rows since training started.

    The rule: a bad row has weight 0, and the other rows of the global batch keep their weights. So a step's gradient is
    the mean over the global batch with the bad row's loss as 0, on any number of ranks and without communication.
    """

    def __init__(self) -> None:
        self._known: dict[Part, set[int]] = {"train": set(), "test": set()}

    def add(self, part: Part, rows: np.ndarray, bad: Mapping[int, RowError]) -> None:
        """Bad rows of a batch, by position in `rows`, the batch's row numbers; the log names those that are new."""
        for position, error in bad.items():
            row = int(rows[position])
            if row not in self._known[part]:
                self._known[part].add(row)
                log_to_file(logging.WARNING, f"skipped a row of {part}: {error.reason}")

    def count(self, group: Group) -> dict[Part, int]:
        """Number of different bad rows of all ranks, by part; call it on every rank."""
        gathered = group.gather([sorted(self._known["train"]), sorted(self._known["test"])])
        return {
            "train": len({row for train, _ in gathered for row in train}),
            "test": len({row for _, test in gathered for row in test}),
        }
