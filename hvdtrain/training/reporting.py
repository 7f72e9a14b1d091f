"""What a run shows and records while it trains: metrics files, progress display, warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hvdtrain.interfaces import Position
from hvdtrain.runs.console import Display, log
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.runs.step_times import StepTime, to_record
from hvdtrain.system import cores, rank_info
from hvdtrain.system.text import printable
from hvdtrain.training.evaluation import Scores
from hvdtrain.training.losses import SpikeDetector
from hvdtrain.training.run import Run
from hvdtrain.training.slow_ranks import SlowRanks

LEAST_WAIT_SHARE = 0.05
"""Share of the training time in which steps wait for data, from which on it is shown."""


class DataFigures(NamedTuple):
    """How reading went since the last evaluation, and how many rows were bad so far."""

    wait_shares: list[float]
    """Share of the training time in which steps of each rank waited for data."""
    workers: int
    train: int = 0
    test: int = 0

    def texts(self) -> list[str]:
        """What is worth showing."""
        worst = max(self.wait_shares)
        texts = []
        if worst >= LEAST_WAIT_SHARE:
            rank = self.wait_shares.index(worst)
            texts.append(f"rank {rank} waited for data {worst:.0%} of the time (raise --workers, now {self.workers})")
        if self.train or self.test:
            texts.append(f"skipped {self.train} bad train row(s) and {self.test} of test (see logs)")
        return texts


class Reporter:
    """Rank 0 writes metrics and shows progress; every rank logs warnings.

    track: called on rank 0 with each record. Raises OSError if the metrics file cannot be created.
    """

    def __init__(self, run: Run, first_step: int, track: Callable[[dict[str, Any]], None]) -> None:
        self._run = run
        self._writer = MetricsWriter(run.folder, track) if run.is_rank_0 else None
        shown = run.is_rank_0 and not run.runtime.quiet
        self._display = Display(run.last_step, run.config.epochs, first_step, shown)
        self._spikes = SpikeDetector()
        self._epoch = EpochFigures(first_step)
        self._metrics: list[str] = []
        self._slow_ranks: SlowRanks | None = None

    def started(self) -> None:
        """Show what is trained, and where, and warn of data that cannot be learned from; call it on every rank."""
        self._slow_ranks = SlowRanks(self._run.group.gather(rank_info.host_name()))
        run, config = self._run, self._run.config
        learner, size = run.learner, run.group.size
        where = f"{learner.devices} devices ({learner.device})" if learner.devices > 1 else learner.device
        self.show(
            f"{run.title} in {config.framework}, {config.strategy}, {size} rank(s) on {where}, "
            f"global batch {run.global_batch}; record in {run.folder}"
        )
        bound = cores.binding()
        if bound.text:
            total = len(bound.before)
            self.show(f"bound to cores {bound.text} of {total}, other ranks to others (--bind none: to all cores)")
        if notice := run.target.notice(config):
            self.show(notice)
        for problem in run.target.problems(run.dataset) if run.is_rank_0 else ():
            log.warning("%s", printable(problem))

    def interval(self, position: Position, loss: float, speed: dict[str, float], times: Sequence[StepTime]) -> None:
        """The steps up to `position` since the last logging step: mean loss (nats), what `Throughput` measured, and
        how long they took each rank.
        """
        run, step = self._run, position.step
        lr, images_per_s = run.learning_rate(max(step - 1, 0)), speed["images_per_s"]
        self._epoch.add(step, loss, lr, images_per_s)
        if self._writer:
            values = {"loss": loss, "lr": lr, **speed, "skipped": run.learner.skipped}
            self._writer.write("train", step, epoch=step / run.steps_per_epoch, **values, **to_record(times))
        median = self._spikes.exceeded_median(loss)
        if median is not None:
            log.warning("the loss jumped to %.4g before step %d; its recent median was %.4g", loss, step, median)
        assert self._slow_ranks, "started() was called"
        self._slow_ranks.add(times)
        figures = [f"{images_per_s:,.0f} {run.unit}/s", f"loss {loss:.4f}", *self._metrics, f"lr {lr:.3g}"]
        figures[:0] = self._slow_ranks.figures
        self._display.update(step, position.epoch + 1, figures)

    def evaluated(self, position: Position, scores: Scores, seconds: list[float], data: DataFigures) -> None:
        """An evaluation, and the seconds that each rank took for its share; data: since the last evaluation."""
        self._metrics = [f"{name} {value:.4f}" for name, value in scores.metrics.items()]
        step, epoch = position.step, position.step / self._run.steps_per_epoch
        if self._writer:
            self._writer.write("ranks", step, evaluation_s=seconds)
        if self._writer and scores.loss is not None:
            self._writer.write("test", step, epoch=epoch, loss=scores.loss, **scores.metrics)
        epochs, part = self._run.config.epochs, position.rows_in_epoch / self._run.samples
        name = f"{position.epoch + 1}/{epochs} ({part:.0%} of it)" if part else f"{position.epoch}/{epochs}"
        test = [] if scores.loss is None else [f"test loss {scores.loss:.4f}"]
        test += [f"test {metric}" for metric in self._metrics]
        train = self._epoch.texts(self._run.unit)
        self._epoch = EpochFigures(step)
        self.show(f"epoch {name}: {', '.join([*train[:1], *test, *train[1:], *data.texts()])}")

    def show(self, text: str) -> None:
        """Print a line on rank 0's console and write it to each rank's log."""
        self._display.show(text)

    def close(self) -> None:
        """Close the metrics files and end the progress bar; `show` still works, and so does `close`."""
        self._display.close()
        if self._writer:
            self._writer.close()
            self._writer = None


class EpochFigures:
    """What was measured since the last evaluation, over all ranks.

    step: number of steps done when it begins.
    """

    def __init__(self, step: int) -> None:
        self._first = self._last = step
        self._finite = 0
        """Number of steps in intervals with a mean loss."""
        self._loss = self._seconds_per_image = self._lr = 0.0

    def add(self, step: int, loss: float, lr: float, images_per_s: float) -> None:
        """The steps up to `step` since the last call: mean loss (nats), learning rate of the last one, and speed."""
        steps, self._last = step - self._last, step
        if math.isfinite(loss):
            self._loss += steps * loss
            self._finite += steps
        self._seconds_per_image += steps / images_per_s
        self._lr = lr

    def texts(self, unit: str) -> list[str]:
        """Mean training loss, last learning rate and mean speed in rows, called `unit`; nothing without steps."""
        steps = self._last - self._first
        if steps == 0:
            return []
        speed = f"{steps / self._seconds_per_image:,.0f} {unit}/s"
        loss = self._loss / self._finite if self._finite else math.nan
        return [f"train loss {loss:.4f}", f"lr {self._lr:.3g}", speed]
