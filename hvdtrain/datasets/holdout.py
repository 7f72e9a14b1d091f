"""Validation rows: a share of the training rows, kept apart from training (`--validation`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hvdtrain.datasets.rows import ArraySource
from hvdtrain.datasets.splitting import split_rows, subset
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Source


class HoldOut(NamedTuple):
    """Which training rows are kept apart."""

    share: float
    """0 for none."""
    seed: int

    def of(self, name: str, source: Source, labels_at: int) -> tuple[Source, Source]:
        """The rows to train on, and those kept apart, each in their order in the source.

        They are divided by class, unless there are more classes than rows to keep apart: such numbers are no classes.
        name: of the data in messages. labels_at: see `labels_of`. Raises UserError if one of both would have no row.
        """
        count, labels = len(source), labels_of(source, labels_at)
        if not 1 <= round(self.share * count) < count:
            problem = f"--validation {self.share:g}: is {round(self.share * count)} of the {count} rows of {name}"
            raise UserError(problem, "give a share that leaves rows in both parts", option="validation")
        if labels is not None and len(np.unique(labels)) > self.share * count:
            labels = None
        trained, validated = split_rows(labels, count, 1 - self.share, self.seed)
        return subset(source, trained), subset(source, validated)


NOTHING = HoldOut(0.0, 0)


def labels_of(source: Source, position: int) -> np.ndarray | None:
    """The labels of all rows, integers (n,), where they are known without reading rows; else None.

    position: of the labels among the arrays of a row. A source in files has them as its attribute `labels`.
    """
    if isinstance(source, ArraySource):
        labels = source.arrays[position] if position < len(source.arrays) else None
    else:
        labels = getattr(source, "labels", None)
    is_known = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iub"
    return labels if is_known and labels is not None and len(labels) == len(source) else None
