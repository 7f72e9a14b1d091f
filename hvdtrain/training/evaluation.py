"""Evaluation on the test set, each image on exactly one rank; and which ranks were slow at it."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.arrays import share_local_arrays
from hvdtrain.datasets import sharding
from hvdtrain.datasets.reader import Reader
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Evaluated, Group
from hvdtrain.runs.console import log
from hvdtrain.runs.step_times import StepTime, slow_ranks
from hvdtrain.system import rank_info
from hvdtrain.training.bad_rows import BadRows
from hvdtrain.training.reduction import sum_arrays
from hvdtrain.training.run import Run

BATCH = 256
"""Images of one evaluation step on one rank."""


class Scores(NamedTuple):
    """An evaluation over the whole test set."""

    loss: float | None
    """Mean loss, nats; None without test rows."""
    metrics: dict[str, float]
    """Means by name; a classifier has `accuracy`."""
    confusion: np.ndarray | None
    """int64 (classes, classes), rows true, columns predicted; None for a task."""
    rows: int = 0
    """Test rows that were read."""

    @property
    def score(self) -> float:
        """0 or above, and greater is better: the accuracy, or a number that falls with the loss; 0 for no number."""
        score = self.metrics.get("accuracy", 0.5 - math.atan(math.inf if self.loss is None else self.loss) / math.pi)
        return score if math.isfinite(score) else 0.0

    def per_class(self) -> list[float]:
        """Accuracy of each class, NaN for a class without test images; empty for a task."""
        if self.confusion is None:
            return []
        counts = self.confusion.sum(1)
        with np.errstate(invalid="ignore"):
            return list(self.confusion.diagonal() / counts)


def evaluate(run: Run, reader: Reader, bad_rows: BadRows, on_batch: Callable[[], None]) -> tuple[Scores, list[float]]:
    """The scores, and the seconds that each rank took for its share; `on_batch` is called after each batch.

    Rows that are skipped as they cannot be read are added to `bad_rows`, and count in no score.

    Call it on every rank. Slow ranks are logged: in a training step every rank takes as long as the slowest, and only
    here each one works without waiting.
    """
    if not len(run.dataset.test):
        return Scores(None, {}, None), [0.0] * run.group.size
    began = time.perf_counter()
    sums = Sums(run.target.confused_classes(run.dataset))
    share_local_arrays(run.learner)
    parts, ahead = itertools.tee(sharding.evaluation(len(run.dataset.test), BATCH, run.group.rank, run.group.size))
    for rows, found in zip(parts, reader.batches("test", ahead), strict=True):
        bad_rows.add("test", rows, found.bad)
        arrays = tuple(np.delete(array, list(found.bad), 0) if found.bad else array for array in found.arrays)
        if len(arrays[0]):
            sums.add(run.learner.eval_step(arrays), arrays)
        on_batch()
    seconds = _compare_ranks(run.group, time.perf_counter() - began)
    return sums.join(run.group), seconds


class Sums:
    """What one rank has evaluated so far. classes: size of the confusion matrix, 0 for none."""

    def __init__(self, classes: int) -> None:
        self.rows, self.loss = 0, 0.0
        self.metrics: dict[str, float] = {}
        self.confusion = np.zeros((classes, classes))

    def add(self, evaluated: Evaluated, arrays: tuple[np.ndarray, ...]) -> None:
        """Add an evaluation step on these rows."""
        self.rows += len(arrays[0])
        self.loss += evaluated.loss
        for name, value in evaluated.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value
        if evaluated.predicted is not None:
            np.add.at(self.confusion, (arrays[1], evaluated.predicted), 1)

    def join(self, group: Group) -> Scores:
        """The scores over all ranks: exactly those of a single process. Call it on every rank.

        Raises UserError if there is no row.
        """
        names = sorted(set().union(*group.gather(list(self.metrics))))  # a rank without rows has none
        own = np.array([self.rows, self.loss, *(self.metrics.get(name, 0.0) for name in names)])
        (rows, loss, *metrics), counts = sum_arrays(group, own, self.confusion)
        if not rows:
            raise UserError("no row of the test data can be read", "see the ranks' logs for each row")
        means = {name: float(value / rows) for name, value in zip(names, metrics, strict=True)}
        confusion = np.rint(counts).astype(np.int64) if counts.size else None
        return Scores(float(loss / rows), means, confusion, round(rows))


def _compare_ranks(group: Group, seconds: float) -> list[float]:
    """The seconds of all ranks; logs those that took much longer than the median."""
    gathered = group.gather((rank_info.host_name(), seconds))
    by_rank = [taken for _, taken in gathered]
    for rank in (slow.rank for slow in slow_ranks([[StepTime(taken, 0.0, 0.0) for taken in by_rank]])):
        log.warning(
            "rank %d on %s is slow: %.2f s for its share of the evaluation, the median rank took %.2f s; in training "
            "all other ranks wait for it: check that host with python -m hvdtrain doctor",
            *(rank, gathered[rank][0], by_rank[rank], np.median(by_rank)),
        )
    return by_rank
