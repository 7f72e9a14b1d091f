"""The parts of the data that a run makes itself: test rows and validation rows, by --split."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hvdtrain.config.forms import Split
from hvdtrain.config.options import Config
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.datasets.splitting import classes_of, divide, split_rows, subset
from hvdtrain.datasets.streams import stream_of
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Source


class Division(NamedTuple):
    """How rows are divided."""

    split: float
    """See `Split.untested`."""
    validation: float
    seed: int

    @classmethod
    def by(cls, config: Config) -> Division:
        """That of a run with these options."""
        return cls(*Split.parse(config.split), config.seed)

    def of(
        self, name: str, train: Source, test: Source | None, labels: np.ndarray | None = None, labels_at: int = 1
    ) -> tuple[Source, Source, Source | None]:
        """Training, test and validation rows, each in their order in the source; None for no validation rows.

        test: None where the data has no such part. name: of the data in messages. labels: of `train`, where they are
        known; else see `labels_of`. Raises UserError for parts that cannot be made, or that would have no row.
        """
        if (self.split or self.validation) and stream_of(train):
            reason = f"--split: {name} is a stream, whose rows cannot be chosen by number"
            raise UserError(reason, "give the parts as streams of their own", option="split")
        is_whole = test is not None
        trained, tested = divide(name, train, test, labels, self.split, self.seed)
        if not self.validation:
            return trained, tested, None
        known = labels if is_whole and labels is not None else labels_of(trained, labels_at)
        trained, validated = self._without_validation(name, trained, known)
        return trained, tested, validated

    def _without_validation(self, name: str, train: Source, labels: np.ndarray | None) -> tuple[Source, Source]:
        """The training rows but a share of them, and that share as validation rows, by class."""
        count, kept = len(train), round(self.validation * len(train))
        if not 1 <= kept < count:
            problem = f"--split: {kept} of the {count} training rows of {name} would be validation rows"
            raise UserError(problem, "give shares that leave rows in both parts", option="split")
        rows, validated = split_rows(classes_of(labels, kept), count, 1 - self.validation, self.seed)
        return subset(train, rows), subset(train, validated)


UNDIVIDED = Division(0.0, 0.0, 0)


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
