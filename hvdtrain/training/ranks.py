"""The ranks at a logging step: one allreduce joins their losses, their times, and whether one of them must stop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, SupportsFloat

import numpy as np

from hvdtrain.errors import NotFiniteError
from hvdtrain.interfaces import Group, Position
from hvdtrain.runs.console import log
from hvdtrain.runs.lock import STALE_S
from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.system.phases import FINISHING, JOINING, LOGGING, phases
from hvdtrain.training import consistency
from hvdtrain.training.batches import Batches
from hvdtrain.training.preemption import StopRequest
from hvdtrain.training.run import Run


class RankStep(NamedTuple):
    """A step on one rank."""

    rank: int
    step: int


class Interval(NamedTuple):
    """What all ranks computed since the last logging step."""

    loss: float
    """Mean loss over the interval's rows, without those of losses that were not finite; NaN if none was finite."""
    not_finite: RankStep | None = None
    """The first step whose loss was not finite, and the rank on which that happened."""
    stopping_rank: int | None = None
    """First rank that was asked to stop."""
    checkpoint_due: bool = False
    """Whether rank 0 finds it time for a checkpoint."""
    times: Sequence[StepTime] = ()
    """How long the interval's steps took each rank."""


class Ranks:
    """Collects what this rank computes between two logging steps, and joins it over all ranks.

    Losses are read only when they are joined, so no step waits for the one before it. take_time: how long the steps
    since its last call took this rank. stop: requests to stop.
    """

    def __init__(self, run: Run, batches: Batches, take_time: Callable[[], StepTime], stop: StopRequest) -> None:
        self._run, self._batches, self._take_time, self._stop = run, batches, take_time, stop
        self._pending: list[tuple[int, SupportsFloat]] = []
        self._stopping_rank: int | None = None

    def add(self, step: int, loss: SupportsFloat) -> None:
        """Add this rank's loss of a step, weighted so that the mean over ranks is that of the global batch."""
        self._pending.append((step, loss))

    def join(self, at: Position, checkpoint_due: bool) -> Interval:
        """The interval over all ranks; call it on every rank at the same step.

        checkpoint_due: rank 0's decides. Raises NotFiniteError if a loss or a parameter is not finite.
        """
        phases.begin(LOGGING)
        self._run.lock.check(within_s=STALE_S / 2)
        stop_requested = bool(self._stop.reason())
        phases.begin(FINISHING)
        weights = self._run.learner.weights()
        losses = self._read_losses()
        phases.begin(JOINING)
        interval = join(self._run.group, losses, stop_requested, checkpoint_due, self._take_time())
        phases.begin(LOGGING)
        self._stopping_rank = interval.stopping_rank
        if interval.not_finite:
            self._handle_bad_loss(interval.not_finite)
        consistency.check_finite(weights, at.step, self._run.learner.local_weights)
        return interval

    def _read_losses(self) -> list[tuple[int, float]]:
        """The steps since the last logging step and their losses."""
        pending, self._pending = self._pending, []
        losses = self._run.learner.read_losses([loss for _, loss in pending])
        return [(step, loss) for (step, _), loss in zip(pending, losses, strict=True)]

    def _handle_bad_loss(self, bad: RankStep) -> None:
        """A loss was not finite: end the job, or with --on-nan skip, which has skipped the update, warn."""
        rows = self._batches.describe_rows(bad.rank, bad.step)
        text = f"rank {bad.rank}: loss is not finite at step {bad.step}, in training rows {rows}"
        if self._run.config.on_nan == "stop":
            remedy = "lower the learning rate, check these rows, or use --on-nan skip"
            raise NotFiniteError(text, remedy, rank=bad.rank, step=bad.step)
        log.warning("%s; %d step(s) skipped so far", text, self._run.learner.skipped)

    def check_same_weights(self, step: int) -> None:
        """Compare the parameters of all ranks (`--check-sync`). Raises TrainingError if they differ."""
        weights = self._run.common_weights()  # waits for the last update
        phases.begin(JOINING)
        consistency.check_same_weights(self._run.group, weights, f"after step {step}")

    def stop_if_asked(self, at: Position, save: Callable[[], None]) -> None:
        """If a rank was asked to stop: save, and raise Stopped on all ranks."""
        if self._stopping_rank is not None:
            self._stop.stopping()
            save()
            self._stop.raise_stopped(self._run.group, self._stopping_rank, self._run.folder, at.step)
        if at.step >= self._run.last_step:
            self._stop.finishing()


def join(
    group: Group,
    losses: list[tuple[int, float]],
    stop_requested: bool = False,
    checkpoint_due: bool = False,
    time: StepTime = NO_TIME,
) -> Interval:
    """What all ranks computed, in a single allreduce; call it on every rank at the same step.

    losses: steps of this rank and their losses. stop_requested: whether this rank was asked to stop. time: how long the
    steps took this rank, without this sum, in which it may wait for other ranks.
    """
    rank, size = group.rank, group.size
    finite = [loss for _, loss in losses if math.isfinite(loss)]
    first_bad_step = next((step for step, loss in losses if not math.isfinite(loss)), None)
    totals = np.array([sum(finite), len(finite), checkpoint_due and rank == 0])
    bad, bad_step, stop = np.zeros(size), np.zeros(size), np.zeros(size)
    if first_bad_step is not None:
        bad[rank], bad_step[rank] = 1, first_bad_step
    stop[rank] = stop_requested
    columns = np.zeros((4, size))
    columns[:, rank] = [time.compute, time.communicate or 0.0, time.data, time.communicate is None]
    totals, bad, bad_step, stop, columns = sum_arrays(group, totals, bad, bad_step, stop, columns)
    loss = float(totals[0] / totals[1]) if totals[1] else math.nan
    return Interval(loss, _earliest(bad, bad_step), _first(stop), bool(totals[2]), _times(columns))


def sum_arrays(group: Group, *arrays: np.ndarray) -> list[np.ndarray]:
    """The element-wise sum of each array over all ranks, float64, in the array's shape.

    One allreduce for all, because each costs a cycle of Horovod's.
    """
    joined = group.sum(np.concatenate([array.ravel() for array in arrays]))
    ends = itertools.accumulate(array.size for array in arrays)
    return [joined[end - array.size : end].reshape(array.shape) for end, array in zip(ends, arrays, strict=True)]


def _times(columns: np.ndarray) -> list[StepTime]:
    """The times of all ranks, by rank: no rank knows its communication unless all do."""
    known = not columns[3].any()
    return [
        StepTime(compute, communicate if known else None, data) for compute, communicate, data in columns[:3].T.tolist()
    ]


def _earliest(bad: np.ndarray, bad_step: np.ndarray) -> RankStep | None:
    """The rank with the first bad step; both arrays are by rank."""
    if not bad.any():
        return None
    rank = int(np.argmin(np.where(bad > 0, bad_step, np.inf)))
    return RankStep(rank, int(bad_step[rank]))


def _first(flags: np.ndarray) -> int | None:
    return int(np.argmax(flags)) if flags.any() else None
