"""Training of a script that has a loop of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer
from hvdtrain.collectives.surviving import RanksChanged
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.division import Division
from hvdtrain.datasets.weights import Weighted
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_user_learner
from hvdtrain.interfaces.combining import StepLoss
from hvdtrain.interfaces.reading import Batch
from hvdtrain.runs.console import log
from hvdtrain.system.phases import SCRIPT, SCRIPT_FORWARD, phases
from hvdtrain.tasks.target import Script
from hvdtrain.training import result
from hvdtrain.training.loop_position import LoopPosition
from hvdtrain.training.run import Findings, RunContext
from hvdtrain.training.train import AlreadyFinished, check_trackers, start_run

Arrays = tuple[Any, ...]
EPOCH_END: Final[Arrays] = (object(),)
"""Stands in the stream of batches after the last one of an epoch, for a script of two nested loops."""


@dataclass
class Turn:
    """A turn of a script's loop: a batch, or with --shards one of its shards, and what `step` made of it."""

    is_first: bool
    """Whether it begins the step."""
    ends_step: bool
    loss: StepLoss | None = None
    """None until the step, or its part, is made."""
    change: RanksChanged | ShardsDiffer | ShardHashes | None = None
    """Why it was no update: raised when the script asks for the next batch, or leaves."""

    @property
    def is_within_step(self) -> bool:
        is_made = self.loss is not None
        return not self.ends_step if is_made else not self.is_first


class UserLoop(LoopPosition):
    """A run whose loop is a script's: the script asks for batches, and gives back the losses of their rows.

    Call each method on every rank. Use it in a `with` statement, which ends the run: after the last batch, or where the
    script leaves the loop, with an evaluation, a checkpoint and the result. A run without a step has no result.
    """

    def __init__(
        self, script: str, config: Config, runtime: RuntimeOptions, examine_host: Callable[[], Findings]
    ) -> None:
        """script: its file's name. examine_host: see `train`. Raises UserError for options that cannot be."""
        self._script = Script(script, config)
        check_trackers(runtime)
        config = dataclasses.replace(config, model=script)
        self._config, self._runtime, self._examine_host = config, runtime, examine_host
        self._learner = build_user_learner(config, self._script, runtime)
        self._stack = contextlib.ExitStack()
        self._training = self._finished = None
        self._stream: Iterator[Arrays] = iter(())
        """The rest of the run: the batches that the script gets."""
        self._turn: Turn | None = None
        """The present one; None before the first."""
        self._is_set_up = self._has_steps = self._is_complete = False
        self._resumed_schedules: dict[str, int] = {}
        """Steps of each schedule of a run that is resumed in the middle of an epoch, until the first step."""
        self._lr = 0.0
        """Learning rate of the last call of `step`."""

    def __enter__(self) -> UserLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if self._is_complete or not self._turn:
                return
            if self._has_steps or self._turn.is_within_step:  # the script has left the loop
                self._leave()
                if not self._is_complete:
                    raise UserError("the script caught an error that has ended its loop", "let it end the script")

    def _leave(self) -> None:
        """Go to the end of the run with the other ranks."""
        phases.is_leaving = True
        try:
            for _ in self._stream:
                pass
        finally:
            phases.is_leaving = False

    def setup(
        self, model: Any, optimizer: Any, unused_parameters: bool = False, mixes_rows: bool = False
    ) -> tuple[Any, Any]:
        """The model and the optimizer to use from then on: on the device, with rank 0's weights, for all ranks.

        unused_parameters: whether parameters may get no gradient in a step, which DistributedDataParallel must know.
        mixes_rows: whether the loss of a row may depend on others of its batch.
        Raises UserError if they do not fit together.
        """
        _check_time("setup", not self._is_set_up, "call it once: join the models in one module, with one optimizer")
        self._stack.callback(self._learner.close)  # also where the run does not begin
        wrapped = self._learner.setup(model, optimizer, unused_parameters)
        self._is_set_up, self._script = True, dataclasses.replace(self._script, mixes_rows=mixes_rows)
        return wrapped

    def register(self, **states: Any) -> None:
        """Save schedulers and the like in each checkpoint, by names, and restore them when the run is resumed.

        Each has state_dict() and load_state_dict(). Call it before `batches`. Raises UserError otherwise.
        """
        is_time = self._is_set_up and not self._training
        _check_time("register", is_time, "call it after setup() and before batches()")
        self._learner.register(states)

    def batches(
        self,
        train: Any,
        test: Any = None,
        evaluate: Callable[..., Any] | None = None,
        validation: Any = None,
        weights: Any = None,
    ) -> Iterator[Arrays]:
        """The batches of this rank, in all epochs: a tuple of arrays each, on the device. Call `step` after each.

        train, test, validation: rows, as a task's data() returns them (docs/own.md). evaluate: called with the arrays
        of test or validation rows, in evaluation mode, returns the loss of each row, or that and a dict of metrics of
        each row. weights: of the training rows, (n,), in the mean of the losses that `step` gets (`Weighted`).
        Raises UserError if the rows or evaluate are invalid, and what `train` raises.
        """
        self._begin("batches", tuple, train, test, evaluate, validation, weights)
        return self._stream

    def each_epoch(
        self,
        train: Any,
        test: Any = None,
        evaluate: Callable[..., Any] | None = None,
        validation: Any = None,
        weights: Any = None,
    ) -> Iterator[Iterator[Arrays]]:
        """For two nested loops: the batches of each epoch, by `batches`, of a resumed one those that are left.

        What the script does after the batches of an epoch, such as a schedule's step(), is done once for each epoch:
        after its evaluation (`scores`), and before the checkpoint.
        """
        self._begin("each_epoch", self._end_of_epoch, train, test, evaluate, validation, weights)
        return _by_epoch(self._stream)

    def _begin(
        self,
        name: str,
        at_epoch_end: Callable[[], Iterable[Arrays]],
        train: Any,
        test: Any,
        evaluate: Callable[..., Any] | None,
        validation: Any,
        weights: Any,
    ) -> None:
        _check_time(name, self._is_set_up, "call it once, after setup()")
        is_first = not (self._training or self._finished)
        _check_time(name, is_first, "it gives all --epochs: call it once; each_epoch() has a loop over epochs")
        has_rows = test is not None or validation is not None or Division.by(self._config).validation > 0
        if has_rows != (evaluate is not None):
            problem = "rows to evaluate, but no evaluate" if has_rows else "evaluate, but no rows for it"
            remedy = "give test or validation rows and evaluate, or none for no evaluation"
            raise UserError(f"batches() got {problem}", remedy)
        if evaluate:
            self._learner.evaluate_by(evaluate)
        train = train if weights is None else Weighted(train, weights)
        dataset = self._script.load(train, test, validation, self._config)
        run = RunContext(self._config, self._runtime, self._script, self._learner, dataset, self._examine_host)
        try:
            training = self._training = self._stack.enter_context(start_run(run))
        except AlreadyFinished as finished:  # the script goes on after its loop
            self._finished = finished
            return
        if training.at.epoch and training.at.rows_in_epoch:  # resumed in the middle of an epoch
            self._resumed_schedules = self._learner.schedule_steps()

        def end_epoch() -> Iterator[Arrays]:
            self._learner.begin_training()
            yield from at_epoch_end()
            self._learner.begin_training()

        self._stream = training.train_by(self._make_steps, self._finish, end_epoch)

    def _make_steps(self, batches: Iterator[Batch], _: int) -> Iterator[Arrays]:
        """The arrays of each batch, and the steps that the script makes with them; see `MakeSteps`."""
        assert self._training
        for batch in batches:
            turn = yield from self._turns(batch)
            if turn.loss is not None:
                self._training.after_step(turn.loss)
            if phases.is_leaving:
                return

    def _turns(self, batch: Batch) -> Generator[Arrays, None, Turn]:
        """The arrays of the batch, or of each of its shards; the last turn, without a loss if the script leaves."""
        parts = (batch,) if batch.shards is None else batch.shards
        self._learner.begin_step(batch)
        for number, part in enumerate(parts, 1):
            turn = self._turn = Turn(number == 1, number == len(parts))
            arrays = self._learner.prepare(part)
            phases.begin(SCRIPT_FORWARD)
            yield arrays
            if turn.change:
                raise turn.change
            if phases.is_leaving:
                if turn.is_within_step:
                    problem = f"the script left its loop between two shards of step {batch.step}"
                    raise UserError(problem, "leave it only where run.step() returns True")
                break
            if turn.loss is None:
                problem = f"step() was not called for the batch of step {batch.step}"
                raise UserError(problem, "call it for each batch, on every rank")
        return turn

    def _end_of_epoch(self) -> Iterator[Arrays]:
        """Let the script do what it does at the end of an epoch, once: not where the ranks have changed after it.

        Not either at the end of a run that --max-steps ends before: a resumed one goes on in the middle of the epoch.
        """
        assert self._training
        training, learner = self._training, self._learner
        training.evaluate_epoch()
        at = training.at
        if not (at.rows_in_epoch or phases.is_leaving) and learner.ended_epochs != at.epoch:
            learner.ended_epochs = at.epoch
            yield EPOCH_END

    def _finish(self) -> None:
        assert self._training
        result.finish(self._training)
        self._is_complete = True

    def log(self, **values: Any) -> None:
        """Record figures of the script's own at the next logging step: numbers, or tensors of one value.

        Each is averaged over the steps since the last logging step, and over the ranks that have logged it. It does not
        wait for other ranks, so that each may log what it has. Raises UserError for what is no number.
        """
        training = self._training
        _check_time("log", bool(training) and not self._is_complete, "call it for a batch, before or after step()")
        assert training
        training.log(values)

    def step(self, losses: Any) -> bool:
        """Train on the losses of the batch's rows, (n,): backward, gradients over all ranks, and update.

        With --shards, the update follows the last of this rank's shards of a step. Returns whether it was made: then
        call what runs once a step, such as a schedule's step(). Raises UserError if they are not a value for each row,
        or if it is the second call for a batch.
        """
        turn = self._turn
        _check_time("step", turn is not None and turn.loss is None and not turn.change, "call it once for each batch")
        assert turn
        lr = self._learner.learning_rate
        if not turn.is_first and lr != self._lr:
            raise UserError(
                f"step(): the learning rate changed from {self._lr:g} to {lr:g} between two shards of a step",
                "call the schedule's step() only where run.step() returns True",
            )
        self._lr = lr
        if self._resumed_schedules:
            self._check_schedules()
        try:
            turn.loss = self._learner.step(losses, turn.ends_step)
        except (RanksChanged, ShardsDiffer, ShardHashes) as change:  # no update: the step is done again, or ended
            turn.change = change
            return False
        if turn.ends_step and not self._has_steps:
            self._learner.optimizer_state()  # raises now what would end the run at its first checkpoint
            self._has_steps = True
            if self._learner.advice and self.group.rank == 0:
                log.warning("%s", self._learner.advice)
        phases.begin(SCRIPT)
        return turn.ends_step

    def _check_schedules(self) -> None:
        """Raise UserError if the script repeats the step that a schedule made at the beginning of a resumed epoch."""
        epoch, now = self.epoch, self._learner.schedule_steps()
        resumed, self._resumed_schedules = self._resumed_schedules, {}
        for name, steps in resumed.items():
            if steps in (epoch, epoch + 1) and now[name] > steps:
                raise UserError(
                    f"the schedule {name}, which steps once an epoch, steps in epoch {epoch + 1} again, as the run "
                    "was resumed in the middle of it",
                    "call its step() after the last step of each epoch: if run.step(losses) and run.ends_epoch",
                )


def _check_time(call: str, is_time: bool, remedy: str) -> None:
    if not is_time:
        raise UserError(f"{call}() is called at the wrong time", remedy)


def _by_epoch(stream: Iterator[Arrays]) -> Iterator[Iterator[Arrays]]:
    """The batches of each epoch, of a stream of all.

    The stream goes on from the end of an epoch when the next epoch is asked for, so what the script does in between
    comes before that. Raises UserError if the script leaves the batches of an epoch and goes on.
    """
    for first in stream:
        batches = _until_end(first, stream)
        yield batches
        if inspect.getgeneratorstate(batches) != inspect.GEN_CLOSED:
            raise UserError(
                "the script left the batches of an epoch before its end, and asks for the next epoch",
                "take all batches of each epoch, or leave both loops",
            )


def _until_end(first: Arrays, stream: Iterator[Arrays]) -> Generator[Arrays, None, None]:
    for batch in itertools.chain((first,), stream):
        if batch is EPOCH_END:  # at once where all steps of the epoch were done before ranks changed
            return
        yield batch
