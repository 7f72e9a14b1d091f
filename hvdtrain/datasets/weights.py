"""How much rows count in training and in the weighted figures of evaluations: by weights of their own, and by class."""

from __future__ import annotations

import copy
import functools
import hashlib
from typing import Any

import numpy as np

from hvdtrain.config.forms import BALANCED, MAX_WEIGHT, parse_class_weights
from hvdtrain.config.options import Config
from hvdtrain.datasets import sharding
from hvdtrain.datasets.rows import as_array
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Part, Source
from hvdtrain.system.text import did_you_mean, printable

PIECE = 256
"""Rows that are read at once where only reading tells their classes."""


class Weighted:
    """Rows of data of your own, and a weight for each: 0 or more, of which only the ratios count.

    rows: as without weights (docs/own.md). weights: numbers, (n,).
    """

    def __init__(self, rows: Any, weights: Any) -> None:
        self.rows, self.weights = rows, weights

    @classmethod
    def of(cls, rows: Any, arrays: int = 0) -> Weighted | None:
        """Rows that have weights, also as the array after so many others; None for rows that have none."""
        if arrays and isinstance(rows, tuple) and len(rows) == arrays + 1:
            return cls(rows[:-1], rows[-1])
        return rows if isinstance(rows, cls) else None

    def attach(self, where: str, source: Source) -> Source:
        """The source of these rows with their weights. where: names them. Raises UserError for wrong weights."""
        weighted = copy.copy(source)  # the user may give the same source without weights as well
        weighted.weights = valid_weights(where, self.weights, len(source))
        return weighted


def valid_weights(where: str, weights: Any, rows: int) -> np.ndarray:
    """Weights of rows as float64 (rows,). where: names the rows in messages. Raises UserError for others."""
    array = as_array(weights)
    if array.shape != (rows,) or array.dtype.kind not in "biuf":
        given = f"{array.dtype} of shape {array.shape}"
        raise UserError(f"{where}: the weights are {given}, for {rows} row(s)", f"give a number for each, ({rows},)")
    array = array.astype(np.float64)
    wrong = np.flatnonzero(~((array >= 0) & (array <= MAX_WEIGHT)))
    if len(wrong):
        reason = f"{where}: the weight of row {wrong[0]} is {array[wrong[0]]:g}"
        raise UserError(reason, f"give numbers from 0 to {MAX_WEIGHT:g}")
    return array


class Weighting:
    """The weights of a run's rows (`Weighted`, --weight-column, --class-weights), and the order of an epoch (--sample).

    labels_at: of the classes among the arrays of a row. Raises UserError, when it is asked for them, if classes are not
    known or do not exist.
    """

    def __init__(self, config: Config, dataset: Dataset, labels_at: int) -> None:
        self._config, self._dataset, self._labels_at = config, dataset, labels_at
        self._option = "sample" if config.sample == BALANCED else "class_weights"
        self._by_class = bool(config.class_weights) or config.sample == BALANCED

    @property
    def is_given(self) -> bool:
        """Whether rows do not count the same."""
        return self._by_class or any(source.weights is not None for source in self._dataset.parts.values())

    def order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in the order of training, int64 (n,): that of the stream, where the data is one."""
        rows, seed = len(self._dataset.train), self._config.seed
        if self._config.sample == BALANCED:
            return sharding.balanced_order(seed, epoch, self._labels)
        return np.arange(rows) if self._dataset.train.is_stream else sharding.order(seed, epoch, rows)

    @functools.cached_property
    def of_training(self) -> np.ndarray | None:
        """The weights of all training rows, float64 (n,); None where all are the same."""
        weights = self._dataset.train.weights
        if self._config.class_weights:
            values, by_value = self._classes
            by_class = by_value[np.searchsorted(values, self._labels)]
            weights = by_class if weights is None else weights * by_class
        return weights

    def of_evaluated(self, part: Part, rows: np.ndarray, arrays: tuple[np.ndarray, ...]) -> np.ndarray | None:
        """The weights of rows of another part, float64 (n,), by the classes of training; None if it has none.

        arrays: the rows, as the source has them. Rows of a class that was not trained have weight 1.
        """
        weights = self._dataset.parts[part].weights
        if not self._by_class:
            return None if weights is None else weights[rows]
        values, by_value = self._classes
        labels = arrays[self._labels_at]
        places = np.minimum(np.searchsorted(values, labels), len(values) - 1)
        by_class = np.where(values[places] == labels, by_value[places], 1.0)
        return by_class if weights is None else weights[rows] * by_class

    @property
    def digest(self) -> str:
        """What ranks compare: a checksum of weights and classes, on which rows and gradients of a step depend."""
        arrays = [self.of_training, self._labels if self._by_class else None]
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays if array is not None)).hexdigest()[:16]

    def check_steps(self, epochs: int, global_batch: int, steps: int) -> None:
        """Raise UserError if all rows of a step have weight 0. steps: of an epoch."""
        weights = self.of_training
        if weights is None or weights.all():
            return
        for epoch in range(epochs):
            sums = np.add.reduceat(weights[self.order(epoch)], np.arange(0, len(weights), global_batch))[:steps]
            if not sums.all():
                problem = f"all rows of step {np.argmin(sums) + 1} of epoch {epoch + 1} have weight 0"
                remedy = "leave rows without weight out of the data, or give a larger --batch-size"
                raise UserError(f"{self._dataset.name}: {problem}", remedy)

    def count_classes(self, classes: int) -> np.ndarray | None:
        """The training rows of each class, int64 (classes,); None where they are not known, or there are no classes."""
        labels = self._dataset.train.unaugmented.labels(self._labels_at) if classes else None
        if labels is None or labels.min() < 0 or labels.max() >= classes:
            return None
        return np.bincount(labels, minlength=classes)

    @functools.cached_property
    def _labels(self) -> np.ndarray:
        """The classes of all training rows, integers (n,); rows are read where only that tells."""
        source, name = self._dataset.train.unaugmented, self._dataset.name
        if source.is_stream:
            raise self._error(
                f"{name} is a stream, whose classes are not known in advance", "give arrays, or an object"
            )
        labels = source.labels(self._labels_at)
        if labels is None and len(source[np.zeros(1, np.int64)]) > self._labels_at:
            pieces = np.split(np.arange(len(source)), range(PIECE, len(source), PIECE))
            labels = np.concatenate([source[rows][self._labels_at] for rows in pieces])
        if labels is None or labels.dtype.kind not in "iub" or labels.ndim != 1:
            kind = "no array of classes" if labels is None else f"labels of {labels.dtype} and shape {labels.shape}"
            raise self._error(f"the rows of {name} have {kind}", "give each row the number of its class, an integer")
        return labels

    @functools.cached_property
    def _classes(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes of training in order, integers (classes,), and their weights, float64 (classes,)."""
        values, counts = np.unique(self._labels, return_counts=True)
        if self._config.class_weights in ("", BALANCED):
            return values, counts.sum() / (len(values) * counts)  # as scikit-learn's class_weight="balanced"
        given, names = parse_class_weights(self._config.class_weights), self._dataset.classes
        known = [*names, *(str(value) for value in values if not names)]
        if unknown := [name for name in given if name not in known]:
            listed = printable(", ".join(known))
            hint = did_you_mean(unknown[0], known)
            raise self._error(f"there is no class {printable(unknown[0])}{hint}", f"the classes are {listed:.300}")
        return values, np.array([given.get(names[value] if names else str(value), 1.0) for value in values])

    def _error(self, problem: str, remedy: str) -> UserError:
        value = self._config.sample if self._option == "sample" else self._config.class_weights
        reason = f"--{self._option.replace('_', '-')} {printable(value)}: {problem}"
        return UserError(reason, remedy, option=self._option)
