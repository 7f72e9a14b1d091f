"""What a run shows and records while it trains: metrics files, progress display, warnings."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from collections import deque
from collections.abc import Iterator
from typing import Any

from hvdtrain.collectives.groups import by_rank
from hvdtrain.collectives.surviving import RanksChange
from hvdtrain.frameworks import arithmetic
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.reading import EvaluatedPart, Part
from hvdtrain.runs.console import Display, log, log_to_file
from hvdtrain.runs.metrics import LOGGED, MetricsWriter
from hvdtrain.runs.step_times import to_record
from hvdtrain.system import resources
from hvdtrain.system.files import read_json
from hvdtrain.system.text import figure, printable
from hvdtrain.training.batches import Batches
from hvdtrain.training.evaluation import Evaluation
from hvdtrain.training.observer import Observer, Pause
from hvdtrain.training.ranks import LoggedInterval
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import must_write, open_log
from hvdtrain.training.timing import SlowRanks, StepsInterval, Throughput, wait_share

MIN_WAIT_SHARE = 0.05
"""Share of the training time in which steps wait for data, from which on it is shown."""


def data_texts(wait_shares: dict[int, float], workers: int | None, bad: dict[Part, int]) -> list[str]:
    """What is worth showing of how reading went since the last evaluation.

    wait_shares: the share of the training time in which steps of each rank waited for data, by rank. workers: None
    where the rank can only read by itself. bad: numbers of bad rows so far.
    """
    rank = max(wait_shares, key=wait_shares.__getitem__)
    worst, texts = wait_shares[rank], []
    if worst >= MIN_WAIT_SHARE:
        advice = "the rank reads these rows itself" if workers is None else f"raise --workers, now {workers}"
        texts.append(f"rank {rank} waited for data {worst:.0%} of the time ({advice})")
    if any(bad.values()):
        others = f"{bad['validation']} of validation" if bad["validation"] else f"{bad['test']} of test"
        texts.append(f"skipped {bad['train']} bad train row(s) and {others} (see logs)")
    return texts


SPIKE_FACTOR, SPIKE_NATS = 3.0, 0.5
"""A loss is a spike if it exceeds this multiple of the recent median, and the median by this much."""
SPIKE_HISTORY, SPIKE_MIN = 20, 5
"""Number of recent intervals that the median is taken over, and how many it needs at least."""


def exceeded_median(recent: deque[float], loss: float) -> float | None:
    """The median of the losses of recent intervals, in nats, if this one, which is added, is a spike above them."""
    median = statistics.median(recent) if len(recent) >= SPIKE_MIN else math.inf
    if math.isfinite(loss):
        recent.append(loss)
    return median if loss > max(SPIKE_FACTOR * median, median + SPIKE_NATS) else None


class Reporter(Observer):
    """Rank 0 writes the run's record and metrics, also for trackers, and shows progress; every rank logs warnings.

    stack: of what ends with the run. Raises OSError if the metrics file cannot be created.
    """

    def __init__(
        self, run: RunContext, at: Position, batches: Batches, throughput: Throughput, stack: contextlib.ExitStack
    ) -> None:
        self._run, self._batches, self._throughput, self._stack = run, batches, throughput, stack
        self._writer: MetricsWriter | None = None
        if run.is_rank_0:
            with must_write("the record of this run", run.folder):
                content = run.write_record()
            self._begin_metrics(at, content)
        if first := run.group.membership:
            self.record("members", at, **_members(Pause(RanksChange(first, {}, first.ranks), 0.0, 0)))
        self._display = self._new_display(at)
        self._last_interval: dict[str, Any] = {}
        """The last record of a logging step."""
        self._losses: deque[float] = deque(maxlen=SPIKE_HISTORY)
        self._epoch: list[tuple[StepsInterval, float]] = []
        """The logging intervals since the last evaluation, and their losses."""
        self._metrics: list[str] = []
        self._slow_ranks = SlowRanks(run.group)
        self.evaluations: dict[EvaluatedPart, Evaluation] = {}
        """The last one of this process on each part of the data."""

    def _begin_metrics(self, at: Position, content: dict[str, Any] | None) -> None:
        """Write metrics from here on. content: of config.json, for trackers; None where it cannot be read."""
        run = self._run
        if not (content and run.runtime.tracker):
            self._writer = MetricsWriter(run.folder)
            return
        from hvdtrain.runs.trackers.tracking import Tracking

        tracking = Tracking(run.runtime.tracker, run.folder, content, at.step)
        self._stack.enter_context(tracking.until_end())
        self._writer = MetricsWriter(run.folder, tracking.log)

    def _take_over(self, at: Position) -> None:
        """On a new rank 0: have the run's folder, its console and its trackers, as the one that is lost had them."""
        run, content = self._run, None
        run.lock.acquire(run.folder)
        open_log(run.folder, run.group, run.runtime)
        if (run.folder / "config.json").exists():
            with contextlib.suppress(OSError, ValueError):  # of a folder that does not respond
                content = read_json(run.folder / "config.json")
        else:  # it was lost before it had written that
            with must_write("the record of this run", run.folder):
                content = run.write_record()
        self._begin_metrics(at, content)
        self._display = self._new_display(at)
        if self._writer and self._last_interval:  # the one that is lost may not have written it
            self._writer.write("train", **self._last_interval)

    def _new_display(self, at: Position) -> Display:
        shown = self._run.is_rank_0 and not self._run.runtime.quiet
        return Display(self._run.last_step, self._run.config.epochs, at.step, shown)

    def introduce(self) -> None:
        """Show what is trained, and where, and warn of data that cannot be learned from; call it on every rank."""
        run, config = self._run, self._run.config
        learner, size = run.learner, run.group.size
        where = f"{learner.devices} devices ({learner.device})" if learner.devices > 1 else learner.device
        self.show(
            f"{run.target.title(config)} in {config.framework}, {config.strategy}, {size} rank(s) on {where}, "
            f"global batch {run.global_batch}; record in {run.folder}"
        )
        bound = resources.core_binding()
        if bound.text:
            total = len(bound.before)
            self.show(f"bound to cores {bound.text} of {total}, other ranks to others (--bind none: to all cores)")
        if notice := run.target.notice(config):
            self.show(notice)
        for problem in filter(None, self._problems() if run.is_rank_0 else ()):
            log.warning("%s", printable(problem))

    def _problems(self) -> Iterator[str]:
        """What probably is not as it is meant, and what to do; empty texts for what is as it should be."""
        run, config = self._run, self._run.config
        yield run.schedule_problem
        yield from run.options_without_effect()
        yield self._workers_problem
        yield arithmetic.too_many_threads(config.framework)
        if run.learner.device == "cpu":
            yield arithmetic.slow_precision(config.framework, config.precision)
        yield from run.target.problems(run.dataset)

    @property
    def _workers_problem(self) -> str:
        """Why --workers has no effect, and what to do; empty where it has."""
        workers = self._run.runtime.workers
        if workers in ("auto", 0) or self._batches.reader.reads_ahead:
            return ""
        return (
            f"--workers {workers} has no effect: only the rank itself can read these rows, unless their object has the "
            "attribute background = 'threads' and may be read in threads, or a task's file makes them"
        )

    def started(self, at: Position) -> None:
        self._slow_ranks.started()

    def renewed(self, at: Position, pause: Pause) -> None:
        """Record the change; on a new rank 0, go on with the record and the console of the one that is lost."""
        self.evaluations.clear()  # new ranks have none: all evaluate at the end
        self._slow_ranks = SlowRanks(self._run.group)
        if self._run.is_rank_0 and not self._run.lock.is_held:
            self._take_over(at)
        self.record("members", at, **_members(pause))
        log_to_file(logging.INFO, _described(pause, at.step))

    def joined(self, at: Position, interval: LoggedInterval) -> None:
        self._slow_ranks.add(interval.times, self._run.assignment.counts)
        if steps := self._throughput.interval(at):  # else no step was made since then
            self._report(at, interval, steps)

    def _report(self, at: Position, interval: LoggedInterval, steps: StepsInterval) -> None:
        run, step, loss, logged = self._run, at.step, interval.loss, dict(interval.logged)
        lr = run.learning_rate(max(step - 1, 0))
        self._epoch.append((steps, loss))
        values: dict[str, Any] = {"loss": loss, "lr": lr, **steps.record, "skipped": run.learner.skipped}
        values |= {LOGGED: logged} if logged else {}
        epoch = step / run.steps_per_epoch
        self._last_interval = {"step": step, "epoch": epoch, **values, **to_record(by_rank(run.group, interval.times))}
        if self._writer:
            self._writer.write("train", **self._last_interval)
        median = exceeded_median(self._losses, loss)
        if median is not None:
            log.warning("the train loss jumped to %.4g before step %d; its recent median was %.4g", loss, step, median)
        speed = f"{steps.images_per_s:,.0f} {run.target.unit}/s"
        figures = [speed, f"train loss {figure(loss)}", *self._metrics, f"lr {lr:.3g}"]
        figures += [f"{name} {value:.4g}" for name, value in logged.items()]
        figures[:0] = self._slow_ranks.figures
        self._display.update(step, at.epoch + 1, figures)

    def evaluated(self, at: Position, evaluation: Evaluation) -> None:
        """Record an evaluation, and how reading went since the last one; exchanges values of all ranks."""
        self.evaluations[evaluation.part] = evaluation
        if self._writer and evaluation.loss is not None:
            epoch = at.step / self._run.steps_per_epoch
            self._writer.write(evaluation.part, at.step, epoch=epoch, loss=evaluation.loss, **evaluation.metrics)
        if evaluation.part == self._run.dataset.evaluated:  # else it is not one of training, but the test at its end
            self._show_epoch(at, evaluation)

    def _show_epoch(self, at: Position, evaluation: Evaluation) -> None:
        group = self._run.group
        wait_shares = dict(zip(group.ranks, group.gather(wait_share([steps for steps, _ in self._epoch])), strict=True))
        reader = self._batches.reader
        workers = reader.workers if reader.reads_ahead else None
        data = data_texts(wait_shares, workers, self._batches.bad_rows.count(group))
        self._metrics = [f"{name} {figure(value)}" for name, value in evaluation.metrics.items()]
        if self._writer:
            self._writer.write("ranks", at.step, evaluation_s=by_rank(group, evaluation.seconds))
        self._slow_ranks.add_evaluation(evaluation.seconds, self._run.assignment.counts)
        epochs, part = self._run.config.epochs, at.rows_in_epoch / self._run.samples
        name = f"{at.epoch + 1}/{epochs} ({part:.0%} of it)" if part else f"{at.epoch}/{epochs}"
        test = [] if evaluation.loss is None else [f"{evaluation.part} loss {figure(evaluation.loss)}"]
        test += [f"{evaluation.part} {metric}" for metric in self._metrics]
        train = self._epoch_texts(at)
        self._epoch = []
        self.show(f"epoch {name}: {', '.join([*train[:1], *test, *train[1:], *data])}")

    def _epoch_texts(self, at: Position) -> list[str]:
        """Mean train loss, last learning rate and mean speed since the last evaluation; nothing without steps.

        Of an epoch that was resumed, the loss covers only the steps since, and says so.
        """
        if not self._epoch:
            return []
        finite = [(interval.steps, loss) for interval, loss in self._epoch if math.isfinite(loss)]
        steps = sum(count for count, _ in finite)
        loss = sum(count * loss for count, loss in finite) / steps if steps else math.nan
        every = sum(interval.steps for interval, _ in self._epoch)
        speed = every / sum(interval.steps / interval.images_per_s for interval, _ in self._epoch)
        lr, per_epoch = self._last_interval["lr"], self._run.steps_per_epoch
        since = "" if every >= (at.step - 1) % per_epoch + 1 else f" (since step {at.step - every})"
        return [f"train loss {figure(loss)}{since}", f"lr {lr:.3g}", f"{speed:,.0f} {self._run.target.unit}/s"]

    def record(self, kind: str, at: Position, **values: Any) -> None:
        """Write one more record of a kind; on rank 0, with values that are the same on all ranks."""
        if self._writer:
            self._writer.write(kind, at.step, epoch=at.step / self._run.steps_per_epoch, **values)

    def saved(self, at: Position, parameters: str) -> None:
        """Record the checksum of the weights, by which others can tell whether they have the same bits."""
        self.record("checkpoint", at, parameters=parameters)

    def show(self, text: str) -> None:
        """Print a line on rank 0's console and write it to each rank's log."""
        self._display.show(text)

    def close(self) -> None:
        """Close the metrics files and end the progress bar; `show` still works, and so does `close`."""
        self._display.close()
        if self._writer:
            self._writer.close()
            self._writer = None


def _members(pause: Pause) -> dict[str, Any]:
    membership, lost, joined = pause.change
    return {
        "number": membership.number,
        "ranks": list(membership.ranks),
        "hosts": [member.host for member in membership.members],
        "lost": [{"rank": rank, "why": why} for rank, why in sorted(lost.items())],
        "joined": list(joined),
        "seconds": round(pause.seconds, 3),
        "repeated": pause.repeated,
    }


def _described(pause: Pause, step: int) -> str:
    membership, lost, joined = pause.change
    texts = [f"rank {rank} {why}" for rank, why in sorted(lost.items())]
    texts += [f"rank {rank} joins" for rank in joined]
    ranks = ", ".join(map(str, membership.ranks))
    return f"{'; '.join(texts) or 'connections broke'}: ranks {ranks} go on at step {step} after {pause.seconds:.2f} s"
