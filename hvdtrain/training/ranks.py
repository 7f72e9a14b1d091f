"""The ranks at a logging step: they exchange losses, times, figures of a script, and whether one of them must stop."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple, NoReturn

from hvdtrain.errors import INTERRUPTED, NotFiniteError, Stopped, UserError
from hvdtrain.interfaces.combining import ShardLoss, StepLoss
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.console import log
from hvdtrain.runs.lock import STALE_S
from hvdtrain.runs.metrics import MAX_METRICS, MAX_NAME
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system import agent_pipe
from hvdtrain.system.phases import FINISHING, JOINING, LOGGING, phases
from hvdtrain.system.processes import STOP_SIGNALS, ProcessIdentity, is_second_request
from hvdtrain.training import consistency
from hvdtrain.training.batches import Batches
from hvdtrain.training.run import RunContext

FILE = "STOP"


class RankStep(NamedTuple):
    """A step on one rank, as the launcher numbers it."""

    rank: int
    step: int
    part: int
    """Of the global batch: the rank, or with --shards one of its shards."""


class RankInterval(NamedTuple):
    """What one rank says about the steps since the last logging step."""

    total: float = 0.0
    """Sum of the finite losses. Of shards, rank 0 has those of all ranks."""
    number: int = 0
    """Of the losses in it."""
    not_finite: RankStep | None = None
    """The first of the others."""
    stop_requested: bool = False
    checkpoint_due: bool = False
    times: StepSeconds = NO_TIME
    """How long the steps took, without joining them, in which a rank may wait for others."""
    logged: dict[str, list[float]] = {}  # noqa: RUF012  (a NamedTuple's default is never written to)
    """Figures of the script, by name."""
    settings: str = ""
    """A digest of `consistency.settings`."""


class LoggedInterval(NamedTuple):
    """What all ranks computed since the last logging step."""

    loss: float
    """Mean loss over the interval's rows, without those of losses that were not finite; NaN if none was finite."""
    not_finite: RankStep | None = None
    """The first step whose loss was not finite, and the rank on which that happened."""
    stopping_rank: int | None = None
    """First rank that was asked to stop."""
    checkpoint_due: bool = False
    """Whether rank 0 finds it time for a checkpoint."""
    times: Sequence[StepSeconds] = ()
    """How long the interval's steps took each rank."""
    logged: Mapping[str, float] = MappingProxyType({})
    """Means of the script's figures by name, over all ranks that logged them."""
    settings_differ: bool = False
    """Whether the ranks' optimizers have other settings."""


class IntervalCollector:
    """Collects what this rank computes between two logging steps, and joins it over all ranks.

    Losses and logged tensors are read only when they are joined, so no step waits for the one before it. take_time: how
    long the steps since its last call took this rank. stop: requests to stop.
    """

    def __init__(
        self, run: RunContext, batches: Batches, take_time: Callable[[], StepSeconds], stop: StopRequest
    ) -> None:
        self._run, self._batches, self._take_time, self._stop = run, batches, take_time, stop
        self._pending: list[tuple[int, StepLoss]] = []
        self._logged: list[tuple[str, Any]] = []
        """What the script has logged in these steps."""
        self._present: list[tuple[str, Any]] = []
        """And in the step that is not done yet: it may be done again, because ranks have changed."""
        self._is_joined = False
        """Whether all of these were joined: they stay until the next step, as ranks that change join them again."""
        self._stopping_rank: int | None = None

    def log(self, values: Mapping[str, Any]) -> None:
        """Add figures by name. Raises UserError if a value is not a number, or a name is invalid."""
        self._present += [(name, _held(name, value)) for name, value in values.items()]

    def add(self, step: int, loss: StepLoss) -> None:
        """Add what `Learner.train_step` returned for a step: weighted so that the mean over parts is the batch's."""
        if self._is_joined:
            self._pending, self._logged, self._is_joined = [], [], False
        if isinstance(loss, list):  # positions in the group, which may be others when they are joined
            ranks = self._run.group.ranks
            loss = [of_shard._replace(rank=ranks[of_shard.rank]) for of_shard in loss]
        self._pending.append((step, loss))
        self._logged += self._present
        self.discard_step()

    def discard_step(self) -> None:
        """The present step is done again."""
        self._present = []

    @property
    def losses(self) -> list[Any]:
        """With --shards: whether they were joined, the steps since the last logging step, and their `ShardLoss`es."""
        of_steps = [(step, [(*loss,) for loss in losses]) for step, losses in self._pending if isinstance(losses, list)]
        return [self._is_joined, of_steps]

    @losses.setter
    def losses(self, values: list[Any]) -> None:
        self._is_joined, of_steps = values or (False, [])
        self._pending = [(step, [ShardLoss(*loss) for loss in losses]) for step, losses in of_steps]

    def join(self, at: Position, checkpoint_due: bool) -> LoggedInterval:
        """The interval over all ranks; call it on every rank at the same step.

        checkpoint_due: rank 0's decides. Raises NotFiniteError if a loss or a parameter is not finite, and
        UserError if the ranks' optimizers have other settings.
        """
        phases.begin(LOGGING)
        self._run.lock.check(within_s=STALE_S / 2)
        stop_requested = bool(self._stop.reason())
        phases.begin(FINISHING)
        weights = self._run.learner.weights()
        local = self._read_losses()
        settings = consistency.settings(self._run.learner)
        phases.begin(JOINING)
        interval = join(
            self._run.group,
            local._replace(
                stop_requested=stop_requested,
                checkpoint_due=checkpoint_due,
                times=self._take_time(),
                logged=self._read_logged(),
                settings=consistency.digest(settings),
            ),
        )
        self._is_joined = True
        if interval.settings_differ:
            consistency.check_same_options(self._run.group, settings, f"after step {at.step}: ")
        phases.begin(LOGGING)
        self._stopping_rank = interval.stopping_rank
        if interval.not_finite:
            self._handle_bad_loss(interval.not_finite)
        consistency.check_finite(weights, at.step, self._run.learner.untrained, self._run.not_finite_at_first)
        return interval

    def _read_losses(self) -> RankInterval:
        pending, rank = self._pending, self._run.group.rank
        if self._run.in_shards:  # all ranks have the same, or joined later; rank 0 has them all
            of_shards = [(step, losses) for step, losses in pending if isinstance(losses, list)]
            return losses_of_shards(of_shards, self._run.parts) if rank == 0 else RankInterval()
        of_rank = [(step, float(loss)) for step, loss in pending if not isinstance(loss, list)]
        return losses_of_rank(rank, of_rank)

    def _read_logged(self) -> dict[str, list[float]]:
        """The figures since the last logging step, by name. Raises UserError if there are too many."""
        values: dict[str, list[float]] = {}
        for name, value in self._logged:
            values.setdefault(name, []).append(float(value))
        if len(values) > MAX_METRICS:
            problem = f"log(): {len(values)} names of figures in one logging interval"
            raise UserError(problem, f"log at most {MAX_METRICS}, under names that do not change from step to step")
        return values

    def _handle_bad_loss(self, bad: RankStep) -> None:
        """A loss was not finite: end the job, or with --on-nan skip, which has skipped the update, warn."""
        rows = self._batches.describe_rows(bad.part, bad.step)
        text = f"rank {bad.rank}: loss is not finite at step {bad.step}, in training rows {rows}"
        if self._run.config.on_nan == "stop":
            remedy = "lower the learning rate, check these rows, or use --on-nan skip"
            if self._run.local_steps:  # which excludes that
                remedy = "lower the learning rate, or check these rows"
            raise NotFiniteError(text, remedy, rank=bad.rank, step=bad.step)
        log.warning("%s; %d step(s) skipped so far", text, self._run.learner.skipped)

    def stop_if_asked(self, at: Position, save: Callable[[], None]) -> None:
        """If a rank was asked to stop: save, and raise Stopped on all ranks."""
        if self._stopping_rank is not None:
            self._stop.stop(self._stopping_rank, at.step, save)


def _held(name: str, value: Any) -> Any:
    """A figure as it is now, which the script may change later: a number, or a tensor that is read later."""
    is_name = 0 < len(name) <= MAX_NAME and name.isprintable()
    if is_name and isinstance(value, numbers.Real):
        return float(value)
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", None)
    if not is_name or size != 1 or "complex" in str(getattr(value, "dtype", "")):
        given = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        problem = f"{name} is {given}" if is_name else f"{name[:MAX_NAME]!r} is not a name of a figure"
        remedy = (
            f"give numbers, or tensors with one real value, such as a mean, by 1 to {MAX_NAME} printable characters"
        )
        raise UserError(f"log(): {problem}", remedy)
    value = value.detach() if hasattr(value, "detach") else value
    return value.clone() if hasattr(value, "clone") else value.copy()


def losses_of_rank(rank: int, losses: list[tuple[int, float]]) -> RankInterval:
    finite = [loss for _, loss in losses if math.isfinite(loss)]
    bad = (RankStep(rank, step, rank) for step, loss in losses if not math.isfinite(loss))
    return RankInterval(sum(finite), len(finite), next(bad, None))


def losses_of_shards(steps: list[tuple[int, list[ShardLoss]]], shards: int) -> RankInterval:
    """Of steps in so many shards, and the losses of those that have rows; the others have a loss of 0.

    The same bits for any number of ranks.
    """
    losses = [(step, loss) for step, of_step in steps for loss in of_step]
    finite = [loss.value for _, loss in losses if math.isfinite(loss.value)]
    bad = [RankStep(loss.rank, step, loss.shard) for step, loss in losses if not math.isfinite(loss.value)]
    # fsum rounds once, so that the order has no influence.
    return RankInterval(math.fsum(finite), len(steps) * shards - len(bad), bad[0] if bad else None)


def join(group: Group, local: RankInterval) -> LoggedInterval:
    """What all ranks computed, in a single gather; call it on every rank at the same step."""
    values = [list(value) if isinstance(value, tuple) else value for value in local]  # of types that every group sends
    ranks = [RankInterval(*of_rank) for of_rank in group.gather(values)]
    number = sum(rank.number for rank in ranks)
    bad = [RankStep(*rank.not_finite) for rank in ranks if rank.not_finite]
    stopping = [place for place, rank in enumerate(ranks) if rank.stop_requested]
    names = sorted(set().union(*(rank.logged for rank in ranks)))
    logged = {name: [value for rank in ranks for value in rank.logged.get(name, ())] for name in names}
    return LoggedInterval(
        sum(rank.total for rank in ranks) / number if number else math.nan,
        min(bad, key=lambda step: step.step, default=None),
        stopping[0] if stopping else None,
        ranks[0].checkpoint_due,
        [StepSeconds(*rank.times) for rank in ranks],
        {name: total(values) / len(values) for name, values in logged.items()},
        len({rank.settings for rank in ranks}) > 1,
    )


def total(values: Sequence[float]) -> float:
    """The sum, rounded once, so that neither the order nor the ranks have an influence; it may be NaN or infinite."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


class StopRequest:
    """Whether this process was asked to stop. A request waits for a step at which all ranks stop together."""

    def __init__(self, folder: Path, group: Group) -> None:
        self._file, self._group = folder / FILE, group
        self._received: dict[int, float] = {}
        """When each signal arrived first, in the order of arrival; monotonic, in s."""
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        """Install the signal handlers; Python allows that in the main thread only."""
        if threading.current_thread() is threading.main_thread():
            has_agent = agent_pipe.send(ProcessIdentity.current())
            # What the parent has this process ignore stays so: Ctrl-C in the background of shells, SIGHUP with nohup.
            numbers = [number for number in STOP_SIGNALS if has_agent or signal.getsignal(number) != signal.SIG_IGN]
            self._handlers = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Record the first signal of each kind; end at once at a second request."""
        now = time.monotonic()
        first = self._received.setdefault(number, now)
        if is_second_request(number, now - first):
            if number == signal.SIGINT:
                self._say("interrupted")
                os._exit(INTERRUPTED)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif now == first and self._group.rank == 0 and number == signal.SIGINT:
            self._say("stopping with a checkpoint or the result; press Ctrl-C again to end at once")

    def _say(self, text: str) -> None:
        """Print a line; `print` may not be used in a signal handler, which may interrupt another `print`."""
        with contextlib.suppress(OSError):  # a terminal that was closed
            os.write(2, f"hvdtrain: rank {self._group.place}: {text}\n".encode())

    def reason(self) -> str:
        """The path of the file, which asks for good, else the first signal's name; empty if there is no request."""
        names = [signal.Signals(number).name for number in self._received]
        return f"{self._file}" if os.path.exists(self._file) else "".join(names[:1])

    def stop(self, rank: int, step: int, save: Callable[[], None]) -> NoReturn:
        """Save the state after this step, and raise Stopped, on all ranks. rank: who was asked to, by position.

        Until the process ends, signals that ask for the same are ignored.
        """
        for number in set(self._handlers) - {signal.SIGINT}:
            signal.signal(number, signal.SIG_IGN)
            del self._handlers[number]
        save()
        reason, place = self._group.gather(self.reason())[rank], self._group.ranks[rank]
        if self._group.rank == 0:
            self._file.unlink(missing_ok=True)  # so that the run can be resumed
        stopped = Stopped(
            f"rank {place} was asked to stop by {reason}; the checkpoint of step {step} is written",
            f"resume with --resume {self._file.parent}",
            rank=place,
            step=step,
        )
        stopped.retry = reason in signal.Signals.__members__
        raise stopped
