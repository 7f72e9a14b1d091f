"""The training loop. Frameworks are behind the learner, and rank arithmetic is in `datasets.sharding`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer
from hvdtrain.collectives.surviving import RanksChanged, leave_if_agreed
from hvdtrain.config.score import Score
from hvdtrain.datasets.reader import Reader
from hvdtrain.errors import Stopped
from hvdtrain.interfaces.combining import StepLoss
from hvdtrain.interfaces.reading import Batch, EvaluatedPart
from hvdtrain.runs import metrics
from hvdtrain.runs.metrics import MetricsReader
from hvdtrain.system.phases import JOINING, LOOP, phases
from hvdtrain.training.audit import Auditor
from hvdtrain.training.balance import Balancing
from hvdtrain.training.batches import Batches
from hvdtrain.training.evaluation import Evaluation, evaluate
from hvdtrain.training.observer import Observer
from hvdtrain.training.ranks import IntervalCollector, StopRequest
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import RunContext
from hvdtrain.training.saver import Saver
from hvdtrain.training.state import Start
from hvdtrain.training.survival import renew
from hvdtrain.training.timing import StepTimer, Throughput
from hvdtrain.training.watchdog import Watchdog

MakeSteps = Callable[[Iterator[Batch], int], Iterable[Any]]
"""Makes so many steps with these batches, and calls `TrainingLoop.after_step` after each. What it yields is for the
script that makes them."""


class TrainingLoop:
    """Synchronous data-parallel training: each rank trains on its rows of every global batch, and all stay equal.

    The steps are made by the learner, or by a script with a loop of its own; observers watch them. start: where it
    begins. reader: of the run's data. stack: of what ends with the run.
    """

    def __init__(self, run: RunContext, start: Start, reader: Reader, stack: contextlib.ExitStack) -> None:
        timer, at = StepTimer(run.group), start.position
        phases.start_run(run.learner.between_steps, timer.on_step_time)
        self.run, self.at, self.batches, self.throughput = run, at, Batches(run, reader), Throughput(at)
        if run.is_over(at):  # the process that made the steps has ended before it wrote their result
            self.throughput.recall(MetricsReader(run.folder / metrics.NAME).read().of_kind("train"), run.global_batch)
        stop = StopRequest(run.folder, run.group)
        watchdog = Watchdog(run.folder, run.group, run.runtime.hang_timeout, timer, lambda: self.batches.rows)
        self.reporter = Reporter(run, at, self.batches, self.throughput, stack)
        self.observers: list[Observer] = [watchdog, self.reporter, self.throughput, Balancing(run, self.reporter)]
        if run.runtime.timeline:
            from hvdtrain.training.tracing import Tracing

            self.observers.append(Tracing(run, self.reporter.show))
        self._saver, self._auditor = Saver(run), Auditor(run, self.batches, self.reporter)
        if run.runtime.audit:
            self.observers.append(self._auditor)
        self._ranks = IntervalCollector(run, self.batches, timer.take, stop)
        self.log, self._ranks.losses = self._ranks.log, start.losses
        self._is_settled = start.is_settled
        """Whether all that was due after the last step is done."""
        self._evaluation: Evaluation | None = None
        """That of an epoch whose end has begun."""
        self.compile_s = 0.0
        """Seconds that this rank took to compile its step."""
        for ends in (stop, watchdog, contextlib.closing(self.reporter)):
            stack.enter_context(ends)

    def train(self, at_end: Callable[[], None] = lambda: None) -> None:
        """Let the learner train to the last step; see `train_by`."""

        def make_steps(batches: Iterator[Batch], steps: int) -> tuple[()]:
            self.run.learner.fit(batches, steps, self.after_step)
            return ()

        for _ in self.train_by(make_steps, at_end):
            pass

    def train_by(
        self, make_steps: MakeSteps, at_end: Callable[[], None], at_epoch_end: Callable[[], Iterable[Any]] = tuple
    ) -> Iterator[Any]:
        """Train to the last step, or until a script has left its loop; what `make_steps` yields.

        at_end: called then. at_epoch_end: called before an epoch is evaluated and saved. All of it is done together
        with the other ranks, and goes on at the furthest step after each change of them.
        Raises TrainingError if training fails, Stopped if a rank was asked to stop.
        """
        while True:
            try:
                yield from self._to_the_end(make_steps, at_epoch_end)
                self._announce(Observer.ended)
                return at_end()
            except RanksChanged as change:
                self._renew(change)
            except Stopped:
                self._announce(Observer.ended)
                raise

    def _to_the_end(self, make_steps: MakeSteps, at_epoch_end: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        self.batches.prepare()
        self._announce(Observer.started)
        if not self._is_settled:  # ranks have changed before all of them had done what was due after the last step
            if self.at.step % self.run.steps_per_epoch == 0 or self.at.step >= self.run.last_step:
                yield from at_epoch_end()
                self._end_epoch()
            else:
                self._do_what_is_due()
        while not self.run.is_over(self.at):
            if not phases.is_leaving:
                yield from self._steps_of_epoch(make_steps)
            if self.at.rows_in_epoch or not self._is_settled:
                yield from at_epoch_end()
                self._end_epoch()
            if phases.is_leaving:
                return

    def _steps_of_epoch(self, make_steps: MakeSteps) -> Iterator[Any]:
        """The steps of an epoch that are left, up to the last one of the run."""
        self._epoch_end = min((self.at.epoch + 1) * self.run.steps_per_epoch, self.run.last_step)
        steps = self._epoch_end - self.at.step
        try:
            yield from make_steps(self.batches.of_epoch(self.at, steps), steps)
        except ShardsDiffer as difference:
            yield from self._compute_again(make_steps, difference)

    def _compute_again(self, make_steps: MakeSteps, difference: ShardsDiffer) -> Iterator[Any]:
        """A step that only computes the shard again of which two ranks have different bits; it says who was wrong."""
        try:
            yield from make_steps(iter([self._auditor.again(self.at, difference)]), 1)
        except ShardHashes as hashes:
            self._auditor.decide(self.at, difference, hashes)
        raise difference  # the script has left its loop

    def after_step(self, loss: StepLoss) -> None:
        """Count a step, with what `train_step` returned; join the ranks, compare them and save when that is due.

        After a local step (`--sync-every`) nothing is due before the next sync point.
        """
        phases.begin(LOOP)
        self._ranks.add(self.at.step, loss)
        self.at, self._is_settled = self.at.after_step(self.run.samples), False
        is_sync_point = self.run.sync_points.has(self.at.step)
        if is_sync_point:
            self._combine()
        self._announce(Observer.step_done)
        if self.at.step < self._epoch_end:  # the end of the epoch joins and saves
            (self._do_what_is_due if is_sync_point else self._end_step)()
        phases.begin(phases.between)

    def _end_step(self) -> None:
        """All that was due after the step is done."""
        self._is_settled = True
        self._announce(Observer.step_ended)
        if not phases.is_leaving:  # else new ranks would begin a loop that the others have left
            leave_if_agreed(self.run.group)

    def _do_what_is_due(self) -> None:
        every = self.run.runtime
        logging, saving = self._is_due(every.log_every), self._is_due(self._saver.every.steps)
        if logging or saving:
            saving |= self._join()
        if logging:
            self._ranks.stop_if_asked(self.at, self._save)
        self._check_sync()
        if saving:
            self._save()
        self._end_step()

    def _end_epoch(self) -> None:
        """After the steps of an epoch, or of the part of one that ends the run: join the ranks, evaluate and save."""
        # What --patience counts must not depend on whether a run was stopped here, so it then stops with a score.
        stops_with_score = self._evaluation or self.run.config.patience
        if not self._evaluation:
            self._join_epoch()
        if not stops_with_score:
            self._ranks.stop_if_asked(self.at, self._save)
        evaluation = self._evaluation or self.evaluate(self.run.dataset.evaluated)
        score = evaluation.score(self.run.config.score).finite
        if not self.at.rows_in_epoch:
            self.at = self.at.scored(score.order if score else (), self.run.config.score_choice)
        if stops_with_score:
            self._ranks.stop_if_asked(self.at, functools.partial(self._save, score))
        self._save(score)
        self._evaluation = None
        self._end_step()

    def evaluate_epoch(self) -> None:
        """Begin the end of an epoch: a script that does something at its end knows the scores, before all is saved."""
        self._join_epoch()
        self._evaluation = self.evaluate(self.run.dataset.evaluated)

    def _is_due(self, interval: int) -> bool:
        """Whether what is done every `interval` steps is due after this one, or a local step before it."""
        return self.run.sync_points.is_due(interval, self.at.step)

    def _combine(self) -> None:
        """End the local steps of the ranks, if they make such, at weights that all have in common."""
        if self.run.local_steps:
            self.run.local_steps.combine(self.at.step)
            phases.begin(LOOP)

    def _join_epoch(self) -> None:
        self._combine()  # where a script has left its loop
        self._join()
        if self.run.local_steps:  # of which an epoch may have no other sync point
            self._check_sync()
        if self.at.step == (self.at.epoch + 1) * self.run.steps_per_epoch:
            self.at = dataclasses.replace(self.at, epoch=self.at.epoch + 1, rows_in_epoch=0)

    def _check_sync(self) -> None:
        """Compare the parameters of all ranks, if that is due (`--check-sync`)."""
        if self._is_due(self.run.runtime.check_sync):
            phases.begin(JOINING)
            self.run.check_same_weights(self.at.step)

    def _renew(self, change: RanksChanged) -> None:
        """Go on with the ranks that train now; the step that was interrupted is done again."""
        self._ranks.discard_step()
        self._evaluation = None
        self.at, self._is_settled, pause = renew(self.run, self._ranks, change, self.at, self._is_settled)
        self._announce(Observer.renewed, pause)

    def evaluate(self, part: EvaluatedPart, step: int | None = None) -> Evaluation:
        """Evaluate the weights as they are; call it on every rank.

        step: of which they are, if of an earlier one, as those of a checkpoint; nothing is then recorded.
        """
        weights_of = self.at.step if step is None else step
        evaluation = evaluate(
            self.run, self.batches, weights_of, part, lambda count: self._announce(Observer.evaluating, count)
        )
        if step is None:
            self._announce(Observer.evaluated, evaluation)
        return evaluation

    def _join(self) -> bool:
        interval = self._ranks.join(self.at, self._saver.is_due)
        self._announce(Observer.joined, interval)
        phases.begin(LOOP)
        return interval.checkpoint_due  # the same on every rank

    def _save(self, score: Score | None = None) -> None:
        self._announce(Observer.saved, self._saver.save(self.at, score))

    def _announce(self, event: Callable[..., None], *details: Any) -> None:
        for notify in self._notified[event.__name__]:
            notify(self.at, *details)

    @functools.cached_property
    def _notified(self) -> dict[str, list[Callable[..., None]]]:
        """By event, the methods of the observers that do something then."""
        events = {name: method for name, method in vars(Observer).items() if not name.startswith("_")}
        return {
            name: [getattr(each, name) for each in self.observers if getattr(type(each), name) is not method]
            for name, method in events.items()
        }
