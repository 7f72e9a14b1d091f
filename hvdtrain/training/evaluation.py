"""Evaluation on validation or test data, each row on exactly one rank."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.collectives.arrays import share_arrays
from hvdtrain.config.score import Score, figure_of
from hvdtrain.datasets import sharding
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Evaluated
from hvdtrain.interfaces.reading import EvaluatedPart
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.console import log
from hvdtrain.runs.metrics import EVALUATION_NAMES
from hvdtrain.system.phases import EVALUATION, EVALUATION_DATA, phases
from hvdtrain.tasks.progress import Progress, place
from hvdtrain.tasks.target import MAX_CONFUSED
from hvdtrain.training.batches import Batches
from hvdtrain.training.ranks import total
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import averaged

BATCH = 256
"""Rows of one evaluation step on one rank at most: more are not faster."""
STEP_FLOPS = 5e8
"""Of so many operations, forward and backward, a step takes a few ms and MB: networks as data take no fewer rows."""


class Evaluation(NamedTuple):
    """An evaluation by all ranks, over all rows of validation or test data."""

    loss: float | None
    """Mean loss, nats; None without rows."""
    metrics: dict[str, float]
    """Means by name; a classifier has `accuracy`, a network that predicts numbers `mae`, `rmse` and `r2`."""
    confusion: np.ndarray | None
    """int64 (classes, classes), rows true, columns predicted; None for a task, and with many classes."""
    rows: int = 0
    """Rows that were read."""
    by_class: np.ndarray | None = None
    """int64 (classes, 2): the rows of each class, and how many of them were right; None for a task."""
    part: EvaluatedPart = "test"
    weighted_loss: float | None = None
    """Mean loss where rows have weights, over the sum of weights; None where they have none."""
    seconds: Sequence[float] = ()
    """What each rank took for its share."""

    def score(self, choice: str) -> Score:
        """The one that a value of --score names; NaN if it was not measured."""
        return figure_of(self.loss, self.metrics, choice, self.part)

    @property
    def record(self) -> dict[str, Any]:
        return {"loss": self.loss, "metrics": self.metrics, "rows": self.rows}

    @property
    def class_rows(self) -> list[int]:
        """The rows of each class that were read; empty where there are no classes."""
        return [] if self.by_class is None else self.by_class[:, 0].tolist()

    def with_weighted(self) -> Evaluation:
        """With `weighted_loss` and the mean accuracy of classes among the metrics, unless those have these names."""
        rated = [accuracy for accuracy in self.per_class() if not math.isnan(accuracy)]
        more = {"balanced_accuracy": total(rated) / len(rated)} if rated else {}
        more |= {} if self.weighted_loss is None else {"weighted_loss": self.weighted_loss}
        new = {name: value for name, value in more.items() if name not in self.metrics}
        return self._replace(metrics={**self.metrics, **new})

    def per_class(self) -> list[float]:
        """Accuracy of each class, NaN for a class without test images; empty for a task."""
        if self.by_class is None:
            return []
        with np.errstate(invalid="ignore"):
            return list(self.by_class[:, 1] / self.by_class[:, 0])


def evaluate(
    run: RunContext, batches: Batches, step: int, part: EvaluatedPart, on_batch: Callable[[int], None]
) -> Evaluation:
    """Evaluate the weights on a part of the data; call it on every rank.

    step: number of steps done. on_batch: called after each batch, with their number so far. Rows that are skipped
    because they cannot be read count in no score. Slow ranks are logged: in a training step every rank takes as long as
    the slowest, and only here each one works without waiting. Raises UserError if no row can be read.
    """
    phases.begin(EVALUATION)
    place.now = Progress(step, step // run.steps_per_epoch)
    if not len(run.dataset.parts[part]):
        return Evaluation(None, {}, None, part=part, seconds=[0.0] * run.group.size)
    began = time.perf_counter()
    sums = Sums(run.target.confused_classes(run.dataset), run.dataset.label_scale, run.target.labels_at)
    if run.group.size > 1:
        run.check_same_weights(step)
    share_arrays(run.learner, run.learner.local_weights)
    with averaged(run.learner):
        _evaluate_rows(run, batches, step, part, sums, on_batch)
    phases.begin(EVALUATION)
    seconds = run.group.gather(time.perf_counter() - began)
    evaluation = sums.join(run.group, part)._replace(seconds=seconds)
    return evaluation.with_weighted() if run.weighting.is_given else evaluation


def _evaluate_rows(
    run: RunContext, batches: Batches, step: int, part: EvaluatedPart, sums: Sums, on_batch: Callable[[int], None]
) -> None:
    """Add this rank's rows of the part to the sums."""
    pieces, ahead = itertools.tee(eval_pieces(run, part, run.group.rank))
    phases.begin(EVALUATION_DATA)
    for count, (numbers, rows) in enumerate(zip(pieces, batches.reader.batches(part, ahead), strict=True)):
        phases.begin(EVALUATION)
        batches.bad_rows.add(part, numbers, rows.bad)
        arrays = tuple(np.delete(array, list(rows.bad), 0) if rows.bad else array for array in rows.arrays)
        if run.in_shards:  # a model that draws random numbers in evaluations draws them by the rows
            run.learner.seed(step, run.parts + 1 + int(numbers[0]))
        if len(arrays[0]):
            weights = run.weighting.of_evaluated(part, np.delete(numbers, list(rows.bad)), arrays)
            sums.add(run.learner.evaluate(arrays), arrays, weights)
        on_batch(count)
        phases.begin(EVALUATION_DATA)


def eval_pieces(run: RunContext, part: EvaluatedPart, rank: int) -> Iterator[np.ndarray]:
    """The numbers of a rank's rows in each of its evaluation steps, which need no more memory than one of training."""
    rows = max(run.rows_of_pass, int(STEP_FLOPS // (run.target.flops_per_row or math.inf)))
    limit = run.target.needed_rows or min(BATCH, rows)
    return sharding.evaluation(len(run.dataset.parts[part]), limit, run.assignment.cut(rank))


class Sums:
    """What one rank has evaluated so far.

    classes: those of a classifier, 0 for none. scale: of numbers to predict. labels_at: see `Target`.
    """

    def __init__(self, classes: int, scale: float = 1.0, labels_at: int = 1) -> None:
        self._rows, self._scale, self._labels_at = 0, scale, labels_at
        self._values: dict[str, list[list[float]]] = {LOSS: []}
        """The sum of each evaluation step that has it, and the number of its rows, by name."""
        self._errors: list[list[float]] = []
        """Those of `error_sums`, where numbers are predicted."""
        self._weighted: list[list[float]] = []
        """Sums of weights, and of weights * loss, where rows have weights."""
        self._by_class = np.zeros((classes, 2))
        self._confusion = np.zeros((classes, classes) if classes <= MAX_CONFUSED else (0, 0))

    def add(self, evaluated: Evaluated, arrays: tuple[np.ndarray, ...], weights: np.ndarray | None = None) -> None:
        """Add an evaluation step. arrays, weights: its rows, and their weights, if they have some."""
        rows = len(arrays[0])
        self._rows += rows
        self._values[LOSS].append([evaluated.loss, rows])
        for name, recorded in recorded_names(evaluated.metrics).items():
            self._values.setdefault(recorded, []).append([evaluated.metrics[name], rows])
            if recorded != name:
                _say_renamed(name, recorded)
        if weights is not None and evaluated.losses:
            self._weighted.append([total(weights.tolist()), total((weights * evaluated.losses()).tolist())])
        if evaluated.predicted is not None and evaluated.predicted.dtype.kind == "f":
            self._errors.append(error_sums(evaluated.predicted, arrays[1]))
        elif evaluated.predicted is not None and self._by_class.size:
            labels = arrays[self._labels_at]
            np.add.at(self._by_class, labels, np.stack([np.ones(rows), labels == evaluated.predicted], 1))
            if self._confusion.size:
                np.add.at(self._confusion, (labels, evaluated.predicted), 1)

    def join(self, group: Group, part: EvaluatedPart = "test") -> Evaluation:
        """The scores over all ranks: exactly those of a single process. Call it on every rank.

        Raises UserError if there is no row.
        """
        gathered = group.gather((self._rows, self._values, self._errors, self._weighted))
        confusion, by_class = (
            np.rint(group.sum(counts.ravel())).astype(np.int64).reshape(counts.shape) if counts.size else None
            for counts in (self._confusion, self._by_class)
        )
        rows = sum(of_rank for of_rank, *_ in gathered)
        if not rows:
            raise UserError(f"no row of the {part} data can be read", "see the ranks' logs for each row")
        means = {}
        for name in sorted(set().union(*(values for _, values, *_ in gathered))):
            sums, counts = zip(*(step for _, values, *_ in gathered for step in values.get(name, ())), strict=True)
            means[name] = total(sums) / sum(counts)
        loss = means.pop(LOSS)
        if errors := [of_step for _, _, of, _ in gathered for of_step in of]:
            means |= regression_scores([total(column) / rows for column in zip(*errors, strict=True)], self._scale)
        of_weights = [(0.0, 0.0), *(of_step for *_, of in gathered for of_step in of)]
        weights, losses = map(total, zip(*of_weights, strict=True))
        weighted = losses / weights if weights else None
        return Evaluation(loss, means, confusion, rows, by_class, part, weighted)


LOSS = ""
"""The name of the loss among those of metrics."""


def error_sums(predicted: np.ndarray, labels: np.ndarray) -> list[float]:
    """The sums over rows of absolute and squared errors, and of labels and their squares."""
    errors, numbers = np.subtract(predicted, labels, dtype=np.float64), labels.astype(np.float64)
    return [float(values.sum()) for values in (np.abs(errors), errors**2, numbers, numbers**2)]


def regression_scores(means: Sequence[float], scale: float) -> dict[str, float]:
    """Mean absolute error and root mean squared error, in the label's own unit, and the coefficient of determination.

    means: of what `error_sums` adds up. scale: by which labels were divided. Without r2 where all labels are the same.
    """
    error, squared, label, label_squared = means
    variance = label_squared - label**2
    scores = {"mae": error * scale, "rmse": math.sqrt(squared) * scale}
    return scores | ({"r2": 1 - squared / variance} if variance > 0 else {})


def metric_names(run: RunContext, evaluated: Evaluated) -> list[str]:
    """The names of the metrics of evaluations, of which this is a step."""
    kind = "" if evaluated.predicted is None else evaluated.predicted.dtype.kind
    numbers = ("mae", "rmse", "r2") if kind == "f" else ()
    weighted = ("weighted_loss", *(["balanced_accuracy"] if kind == "i" else [])) if run.weighting.is_given else ()
    return [*recorded_names(evaluated.metrics).values(), *numbers, *weighted]


def recorded_names(metrics: Collection[str]) -> dict[str, str]:
    """The names that the record gives to a user's metrics: those of its own values get underscores."""
    renamed: dict[str, str] = {}
    for name in metrics:
        recorded = name
        while recorded in {LOSS, *EVALUATION_NAMES} or (recorded != name and recorded in metrics):
            recorded += "_"
        renamed[name] = recorded
    return renamed


@functools.cache
def _say_renamed(name: str, recorded: str) -> None:
    log.info("the metric %r is recorded as %r, as the record has a value of its own by that name", name, recorded)
