"""The training loop. Frameworks are behind the learner, and rank arithmetic is in sharding."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import SupportsFloat

import numpy as np

from hvdtrain.datasets import sharding
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.sources.rows import Rows
from hvdtrain.errors import NotFiniteError, Stopped
from hvdtrain.interfaces import Batch, Learner, Position
from hvdtrain.runs.console import log
from hvdtrain.runs.lock import STALE_S
from hvdtrain.system.recorder import CHECKPOINT, DATA, LOGGING, LOOP, recorder
from hvdtrain.system.recorder import EVALUATION as EVALUATION_PART
from hvdtrain.training import consistency
from hvdtrain.training.bad_rows import BadRows
from hvdtrain.training.compilation import compile_step
from hvdtrain.training.evaluation import Scores, evaluate
from hvdtrain.training.kept_rows import keep_rows
from hvdtrain.training.losses import LossMeter, RankStep
from hvdtrain.training.preemption import StopRequest
from hvdtrain.training.reporting import DataFigures, Reporter
from hvdtrain.training.run import Run
from hvdtrain.training.saving import Saver
from hvdtrain.training.step_times import StepTimer
from hvdtrain.training.throughput import Throughput
from hvdtrain.training.tracing import Tracing
from hvdtrain.training.watchdog import EVALUATION, Watchdog

MOST_ROWS = 8
"""Rows that an error message lists."""


class Training:
    """The epochs and steps of one run: when to log, check, evaluate, save and stop.

    `run` trains to the end. A loop outside, that of a user's script, calls `begin`, then in each epoch `start_epoch`,
    `after_step` for each batch, and `end_epoch`, and `final_scores` in the end.

    position: where training starts, and then where it is. reader: of the run's data. stop, watchdog: enter both around
    all of it, until the result is written.
    """

    def __init__(self, run: Run, position: Position, reader: Reader, reporter: Reporter, saver: Saver) -> None:
        self.position = position
        self.throughput = Throughput()
        self._timer = StepTimer(run.group, self.throughput.waiting)
        self.compile_s = 0.0
        """Seconds that this rank took to compile its step."""
        self.bad_rows = BadRows()
        self._run, self._reader, self._reporter, self._saver = run, reader, reporter, saver
        self.tracing = Tracing(run, reporter.show)
        self._meter = LossMeter(run.group, run.learner.read_losses)
        self._rows_kept = False
        """Whether the learner has the training rows already."""
        self.stop = StopRequest(run.folder, run.group.rank)
        self.watchdog = Watchdog(run.folder, run.group.rank, run.group.size, run.runtime.hang_timeout, self._timer)
        self._stopping_rank: int | None = None
        self._scores: Scores | None = None
        """Of the last epoch that this process has trained."""

    def run(self, learner: Learner) -> None:
        """Train to the last step with the run's learner.

        Raises TrainingError if a loss or parameter is not finite, ranks differ or a checkpoint cannot be written;
        Stopped if a rank was asked to stop.
        """
        self.begin()
        while self.unfinished:
            batches, steps = self.start_epoch()
            learner.fit(batches, steps, self.after_step)
            self.end_epoch()

    def begin(self) -> None:
        """Before the first step."""
        self._reporter.started()
        self._compile()
        self._rows_kept = keep_rows(self._run)
        self._reader.wait_until_loaded()
        self._saver.commit(self.position)
        self.tracing.begin(self.position.step)

    @property
    def unfinished(self) -> bool:
        """Whether there are steps to train."""
        return self.position.step < self._run.last_step

    def final_scores(self) -> Scores:
        """The evaluation of the weights after the last step."""
        return self._scores or self._evaluate()

    def _compile(self) -> None:
        """Compile the step, if it is to be compiled, before any of it is timed."""
        run = self._run
        self.compile_s = compile_step(
            run.config, run.learner, run.dataset.train, -(-run.global_batch // run.group.size)
        )
        if self.compile_s:
            self._reporter.show(f"compiled the step in {self.compile_s:.1f} s")

    @property
    def _epoch_end(self) -> int:
        """Number of steps done when this epoch is complete."""
        return (self.position.epoch + 1) * self._run.steps_per_epoch

    def start_epoch(self) -> tuple[Iterator[Batch], int]:
        """This rank's batches up to the end of the epoch, or of the run, and their number."""
        run, start = self._run, self.position
        rows = sharding.order(run.config.seed, start.epoch, run.samples)[start.rows_in_epoch :]
        self._epoch_start, self._epoch_rows = start, rows
        parts = sharding.batches(rows, run.global_batch, run.remainder, run.group.rank, run.group.size)
        steps = min(self._epoch_end, run.last_step) - start.step
        self.throughput.start(start)
        self._timer.start()
        return self._batches(itertools.islice(parts, steps)), steps

    def end_epoch(self) -> None:
        """After the steps of an epoch, of which the run's last may be a part: log, evaluate and save."""
        self._log_interval()
        if self.position.step == self._epoch_end:
            self.position = dataclasses.replace(self.position, epoch=self.position.epoch + 1, rows_in_epoch=0)
        self._stop_if_asked()
        self._begin_part(EVALUATION_PART)
        self._scores = self._evaluate()
        self._begin_part(CHECKPOINT)
        self._saver.save(self.position, self._scores.score)
        self._saver.commit(self.position)
        self.tracing.interrupted()
        self.tracing.step_ended(self.position.step)

    def _batches(self, parts: Iterator[sharding.Slice]) -> Iterator[Batch]:
        """This rank's rows of each step from the current one on; workers read them ahead."""
        found: Iterator[Rows] = itertools.repeat(Rows(()))
        if not self._rows_kept:
            parts, ahead = itertools.tee(parts)
            found = self._reader.batches("train", (part.rows for part in ahead), self.position.epoch)
        for step, part in enumerate(parts, self.position.step):
            with self.throughput.outside:
                self._begin_part(DATA)
                with self.throughput.waiting:
                    rows = next(found)
                self._begin_part(LOOP)
                if rows.bad:
                    part.weights[list(rows.bad)] = 0
                    self.bad_rows.add("train", part.rows, rows.bad)
                self._timer.rows += int(np.count_nonzero(part.weights))
                batch = Batch(rows.arrays, part.weights, self._run.learning_rate(step), step, part.rows)
            self._begin_part(recorder.between)
            yield batch

    def after_step(self, loss: SupportsFloat) -> None:
        """Count a step, with what `train_step` returned; log, compare the ranks and save when they are due."""
        at, runtime = self.position, self._run.runtime
        self._begin_part(LOOP)
        with self.throughput.outside:
            self._meter.add(at.step, loss)
            taken = min(at.rows_in_epoch + at.global_batch, self._run.samples)
            self.position = at = dataclasses.replace(at, step=at.step + 1, rows_in_epoch=taken)
        self.watchdog.progress(at.step)
        if at.step == self._epoch_end:
            return  # the end of the epoch logs and saves
        logging = at.step % runtime.log_every == 0
        saving = bool(runtime.checkpoint_every) and at.step % runtime.checkpoint_every == 0
        if logging or saving:
            saving = self._log_interval() or saving
        if logging:
            self._stop_if_asked()
            self._saver.commit(at)
        if runtime.check_sync and at.step % runtime.check_sync == 0:
            weights = self._run.common_weights()  # waits for the last update
            self._timer.pause()
            consistency.check_same_weights(self._run.group, weights, f"after step {at.step}")
        if saving:
            self._begin_part(CHECKPOINT)
            self._saver.save(at)
            self.throughput.start(at)
            self.tracing.interrupted()
        if self.tracing.steps:
            self._timer.pause()
            with self.throughput.outside:
                self.tracing.step_ended(at.step)
        self._timer.start()

    @staticmethod
    def _begin_part(name: str) -> None:
        if recorder.on:
            recorder.part(name)

    def _log_interval(self) -> bool:
        """A logging step: join the ranks' losses and stop requests, check them, and report them.

        Returns whether it is time for a checkpoint, the same on every rank.
        """
        self._begin_part(LOGGING)
        self._run.lock.check(within_s=STALE_S / 2)
        weights = self._run.learner.weights()  # waits for the last update
        interval = self._meter.join(bool(self.stop.reason()), self._saver.is_due, self._timer.stop())
        self._stopping_rank = interval.stopping_rank
        if interval.not_finite:
            self._handle_bad_loss(interval.not_finite)
        step = self.position.step
        with self.throughput.outside:
            consistency.check_finite(weights, step, self._run.learner.local_weights)
        speed = self.throughput.interval(self.position)
        if speed:  # else no step was made since the last logging step
            with self.throughput.outside:
                self._reporter.interval(self.position, interval.loss, speed, interval.times)
        self.tracing.logged(step)
        self._begin_part(LOOP)
        return interval.checkpoint_due

    def _handle_bad_loss(self, bad: RankStep) -> None:
        """A loss was not finite: end the job, or with --on-nan skip, which has skipped the update, warn."""
        text = f"rank {bad.rank}: loss is not finite at step {bad.step}, in training rows {self._rows_of(bad)}"
        if self._run.config.on_nan == "stop":
            remedy = "lower the learning rate, check these rows, or use --on-nan skip"
            raise NotFiniteError(text, remedy, rank=bad.rank, step=bad.step)
        log.warning("%s; %d step(s) skipped so far", text, self._run.learner.skipped)

    def _rows_of(self, bad: RankStep) -> str:
        """Numbers of the training rows that a rank had in a step of this epoch."""
        number, run = bad.step - self._epoch_start.step, self._run
        part = sharding.slice_of_step(
            self._epoch_rows, number, run.global_batch, run.remainder, bad.rank, run.group.size
        )
        rows = np.sort(part.rows[part.weights > 0])
        more = f" and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
        return f"{', '.join(map(str, rows[:MOST_ROWS]))}{more}"

    def _stop_if_asked(self) -> None:
        """If a rank was asked to stop: write a checkpoint, and end all ranks."""
        if self._stopping_rank is None:
            return
        self.stop.stopping()
        self._saver.save(self.position)
        self.tracing.end()
        reason = self._run.group.gather(self.stop.reason())[self._stopping_rank]
        if self._run.is_rank_0:
            self.stop.remove_file()
        raise Stopped(
            f"rank {self._stopping_rank} was asked to stop by {reason}; "
            f"the checkpoint of step {self.position.step} is written",
            f"resume with --resume {self._run.folder}",
            rank=self._stopping_rank,
            step=self.position.step,
        )

    def _evaluate(self) -> Scores:
        if self.position.step >= self._run.last_step:
            self.stop.finishing()
        batches = itertools.count()
        scores, seconds = evaluate(
            self._run,
            self._reader,
            self.bad_rows,
            lambda: self.watchdog.progress(self.position.step, EVALUATION, next(batches)),
        )
        group = self._run.group
        shares = group.gather(self.throughput.take_wait_share())
        self._reporter.evaluated(
            self.position, scores, seconds, DataFigures(shares, self._reader.workers, **self.bad_rows.count(group))
        )
        return scores
