"""Evaluation on the test set, each image on exactly one rank; and which ranks were slow at it."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hvdtrain.datasets import sharding
from hvdtrain.datasets.reader import Reader
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Group
from hvdtrain.runs.console import log
from hvdtrain.system import rank_info
from hvdtrain.training.bad_rows import BadRows
from hvdtrain.training.reduction import sum_arrays
from hvdtrain.training.run import Run

BATCH = 256
"""Images of one evaluation step on one rank."""
SLOW_FACTOR, SLOW_S = 1.5, 0.1
"""A rank is slow if it takes this multiple of the median rank's time, and this many seconds more."""


class Scores(NamedTuple):
    """An evaluation over the whole test set."""

    loss: float
    """Mean loss, nats."""
    accuracy: float
    confusion: np.ndarray
    """int64 (classes, classes): rows true, columns predicted."""

    def per_class(self) -> list[float]:
        """Accuracy of each class, NaN for a class without test images."""
        counts = self.confusion.sum(1)
        with np.errstate(invalid="ignore"):
            return list(self.confusion.diagonal() / counts)


def evaluate(run: Run, reader: Reader, bad_rows: BadRows, on_batch: Callable[[], None]) -> tuple[Scores, list[float]]:
    """The scores, and the seconds that each rank took for its share; `on_batch` is called after each batch.

    Rows that are skipped as they cannot be read are added to `bad_rows`, and count in no score.

    Call it on every rank. Slow ranks are logged: in a training step every rank takes as long as the slowest, and only
    here each one works without waiting.
    """
    classes, began = len(run.dataset.classes), time.perf_counter()
    confusion, loss = np.zeros((classes, classes)), 0.0
    run.share_statistics()
    parts, ahead = itertools.tee(sharding.evaluation(len(run.dataset.test), BATCH, run.group.rank, run.group.size))
    for rows, found in zip(parts, reader.batches("test", ahead), strict=True):
        bad_rows.add("test", rows, found.bad)
        images, labels = (np.delete(array, list(found.bad), 0) if found.bad else array for array in found.arrays)
        if len(labels):
            batch_loss, predicted = run.learner.eval_step(images, labels)
            loss += batch_loss
            np.add.at(confusion, (labels, predicted), 1)
        on_batch()
    seconds = _compare_ranks(run.group, time.perf_counter() - began)
    return join_scores(run.group, loss, confusion), seconds


def join_scores(group: Group, loss: float, confusion: np.ndarray) -> Scores:
    """Sum this rank's (summed loss, confusion matrix) over the group: exactly the scores of a single process.

    Raises UserError if the matrices count no row.
    """
    (total,), counts = sum_arrays(group, np.array([loss]), confusion)
    counts = np.rint(counts).astype(np.int64)
    if not counts.any():
        raise UserError("no row of the test data can be read", "see the ranks' logs for each row")
    return Scores(total / counts.sum(), counts.trace() / counts.sum(), counts)


def _compare_ranks(group: Group, seconds: float) -> list[float]:
    """The seconds of all ranks; logs those that took much longer than the median."""
    gathered = group.gather((rank_info.host_name(), seconds))
    by_rank = [taken for _, taken in gathered]
    for rank in slow_ranks(by_rank):
        log.warning(
            "rank %d on %s is slow: %.2f s for its share of the evaluation, the median rank took %.2f s; in training "
            "all other ranks wait for it: check that host with python -m hvdtrain doctor",
            *(rank, gathered[rank][0], by_rank[rank], np.median(by_rank)),
        )
    return by_rank


def slow_ranks(seconds: list[float]) -> list[int]:
    """Ranks that took much longer than the median rank; `seconds` by rank, for equal work without waiting."""
    median = statistics.median(seconds)
    return [rank for rank, taken in enumerate(seconds) if taken > max(SLOW_FACTOR * median, median + SLOW_S)]
