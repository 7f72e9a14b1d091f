"""Training of a script that has a loop of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer
from hvdtrain.collectives.surviving import RanksChanged
from hvdtrain.config import validity
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.division import Division
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_user_learner
from hvdtrain.interfaces.learner import StepLoss
from hvdtrain.interfaces.reading import Batch
from hvdtrain.system.phases import SCRIPT, SCRIPT_FORWARD, phases
from hvdtrain.system.python_files import is_script
from hvdtrain.tasks.user import Script
from hvdtrain.training import result
from hvdtrain.training.begin import AlreadyFinished, Findings
from hvdtrain.training.loop_position import LoopPosition
from hvdtrain.training.nested import EPOCH_END, EpochEnd, by_epoch
from hvdtrain.training.start import StartedRun, check_trackers, start_run


class UserLoop(LoopPosition):
    """A run whose loop is a script's: the script asks for batches, and gives back the losses of their rows.

    Call each method on every rank. Use it in a `with` statement, which ends the run: after the last batch, or where the
    script leaves the loop, with an evaluation, a checkpoint and the result. A run without a step has no result.
    """

    def __init__(
        self, script: str, config: Config, runtime: RuntimeOptions, examine_host: Callable[[], Findings]
    ) -> None:
        """script: its file's name. examine_host: see `train`. Raises UserError for options that cannot be."""
        is_other_script = config.model != script and is_script(config.model)
        validity.check_script(script, is_other_script, config, runtime)
        check_trackers(runtime)
        config = dataclasses.replace(config, model=script)
        self._config, self._runtime, self._examine_host = config, runtime, examine_host
        self._script = Script(script)
        self._learner = build_user_learner(config, self._script, runtime)
        self._stack = contextlib.ExitStack()
        self._started = self._finished = None
        self._is_set_up = self._has_steps = self._is_complete = False
        self._loss: StepLoss | None = None
        """Of the present step; None until `step` was called in it."""
        self._is_counted = False
        """Whether the step of the present batch was counted already, as at the end of an epoch."""
        self._is_stepped, self._ends_step = False, True
        """Whether `step` was called for the present batch, and whether that completes the step."""
        self._change: RanksChanged | ShardsDiffer | ShardHashes | None = None
        """Why the step of the present batch was no update, until the script asks for the next one."""
        self._is_saveable = False
        """Whether the optimizer's state after a step is known to be one that a checkpoint can have."""
        self._resumed_schedules: dict[str, int] = {}
        """Steps of each schedule of a run that is resumed in the middle of an epoch, until the first step."""
        self._difference: ShardsDiffer | None = None
        """What an audit has found in the present step, which is no update then."""
        self._lr = 0.0
        """Learning rate of the last call of `step`."""

    def __enter__(self) -> UserLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if self._started and self._has_steps and not self._is_complete:
                self._leave(self._started)

    def setup(self, model: Any, optimizer: Any, unused_parameters: bool = False) -> tuple[Any, Any]:
        """The model and the optimizer to use from then on: on the device, with rank 0's weights, for all ranks.

        unused_parameters: whether parameters may get no gradient in a step, which DistributedDataParallel must know.
        Raises UserError if they do not fit together.
        """
        if self._is_set_up:
            raise UserError("setup() is called twice", "join the models in one module, and train it with one optimizer")
        wrapped = self._learner.setup(model, optimizer, unused_parameters)
        self._is_set_up = True
        return wrapped

    def register(self, **states: Any) -> None:
        """Save schedulers and the like in each checkpoint, by names, and restore them when the run is resumed.

        Each has state_dict() and load_state_dict(). Call it before `batches`. Raises UserError otherwise.
        """
        if self._started or not self._is_set_up:
            raise UserError("register() is called at the wrong time", "call it after setup() and before batches()")
        self._learner.register(states)

    def batches(
        self, train: Any, test: Any = None, evaluate: Callable[..., Any] | None = None, validation: Any = None
    ) -> Iterator[tuple[Any, ...]]:
        """The batches of this rank, in all epochs: a tuple of arrays each, on the device. Call `step` after each.

        train, test, validation: rows, as a task's data() returns them (docs/own.md). evaluate: called with the arrays
        of test or validation rows, in evaluation mode, returns the loss of each row, or that and a dict of metrics of
        each row.
        Raises UserError for what is none of this, and what `train` raises.
        """
        stream = self._begin(False, train, test, evaluate, validation)
        return (batch for batch in stream if not isinstance(batch, EpochEnd))

    def each_epoch(
        self, train: Any, test: Any = None, evaluate: Callable[..., Any] | None = None, validation: Any = None
    ) -> Iterator[Iterator[tuple[Any, ...]]]:
        """For two nested loops: the batches of each epoch, by `batches`, of a resumed one those that are left.

        What the script does after the batches of an epoch, such as a schedule's step(), is done once for each epoch:
        after its evaluation (`scores`), and before the checkpoint.
        """
        return by_epoch(self._begin(True, train, test, evaluate, validation))

    def _begin(
        self, is_nested: bool, train: Any, test: Any, evaluate: Callable[..., Any] | None, validation: Any
    ) -> Iterator[tuple[Any, ...] | EpochEnd]:
        if self._started or self._finished or not self._is_set_up:
            name = "each_epoch" if is_nested else "batches"
            raise UserError(f"{name}() is called at the wrong time", "call it once, after setup()")
        has_rows = test is not None or validation is not None or Division.by(self._config).validation > 0
        if has_rows != (evaluate is not None):
            problem = "rows to evaluate, but no evaluate" if has_rows else "evaluate, but no rows for it"
            remedy = "give test or validation rows and evaluate, or none for no evaluation"
            raise UserError(f"batches() got {problem}", remedy)
        if evaluate:
            self._learner.evaluate_by(evaluate)
        dataset = self._script.load(train, test, validation, self._config)
        starting = start_run(self._config, self._runtime, self._script, self._learner, dataset, self._examine_host)
        try:
            self._started = self._stack.enter_context(starting)
        except AlreadyFinished as finished:  # the script goes on after its loop
            self._finished = finished
            return iter(())
        at = self._started.at
        if at.epoch and at.rows_in_epoch:  # resumed in the middle of an epoch
            self._resumed_schedules = self._learner.schedule_steps()
        return self._batches(self._started, is_nested)

    def _batches(self, started: StartedRun, is_nested: bool) -> Iterator[tuple[Any, ...] | EpochEnd]:
        while not self._is_complete:
            try:
                for batches in started.training.epochs():
                    for batch in batches:
                        try:
                            yield from self._parts(batch)
                        except ShardsDiffer as difference:
                            yield from self._compute_again(started, difference)
                        self._count_step(started)
                    if is_nested:
                        yield from self._end_of_epoch(started)
                self._finish(started)
            except RanksChanged as change:
                self._difference = None  # the step is done again
                started.logged.discard_step()
                started.survivors.renew(change)

    def _end_of_epoch(self, started: StartedRun) -> Iterator[EpochEnd]:
        """Let the script do what it does at the end of an epoch, once: not where the ranks have changed after it.

        Not either at the end of a run that --max-steps ends before: a resumed one goes on in the middle of the epoch.
        """
        training, learner = started.training, self._learner
        training.evaluate_epoch()
        if not training.at.rows_in_epoch and learner.ended_epochs != training.at.epoch:
            learner.ended_epochs = training.at.epoch
            yield EPOCH_END

    def _compute_again(self, started: StartedRun, difference: ShardsDiffer) -> Iterator[tuple[Any, ...]]:
        """One more turn of the loop, with the shard of which two ranks computed different bits."""
        auditor, at = started.auditor, started.training.at
        self._difference = difference
        try:
            yield from self._parts(auditor.again(at, difference))
        except ShardHashes as hashes:
            self._difference = None
            auditor.decide(at, difference, hashes)

    def _parts(self, batch: Batch) -> Iterator[tuple[Any, ...]]:
        """The arrays of the batch, or of each of its shards."""
        parts: tuple[Batch, ...] = (batch,)
        self._loss = None
        if batch.shards is not None:
            parts = batch.shards
            self._learner.begin_shards(batch)
        for number, part in enumerate(parts, 1):
            self._is_stepped, self._is_counted, self._ends_step = False, False, number == len(parts)
            arrays = self._learner.prepare(part)
            phases.begin(SCRIPT_FORWARD)
            yield arrays
            if self._change:
                change, self._change = self._change, None
                raise change
            if not self._is_stepped:
                problem = f"step() was not called for the batch of step {batch.step}"
                raise UserError(problem, "call it for each batch, on every rank")

    def log(self, **values: Any) -> None:
        """Record figures of the script's own at the next logging step: numbers, or tensors of one value.

        Each is averaged over the steps since the last logging step, and over the ranks that have logged it. It does not
        wait for other ranks, so that each may log what it has. Raises UserError for what is no number.
        """
        if not self._started or self._is_complete:
            raise UserError("log() is called outside the loop", "call it for a batch, before or after step()")
        self._started.logged.add(values)

    def step(self, losses: Any) -> bool:
        """Train on the losses of the batch's rows, (n,): backward, gradients over all ranks, and update.

        With --shards, the update follows the last of this rank's shards of a step. Returns whether it was made: then
        call what runs once a step, such as a schedule's step(). Raises UserError if they are not a value for each row,
        or if it is the second call for a batch.
        """
        if self._is_stepped or not self._started:
            raise UserError("step() is called twice, or before the first batch", "call it once for each batch")
        lr = self._learner.learning_rate
        if self._loss is not None and lr != self._lr:
            raise UserError(
                f"step(): the learning rate changed from {self._lr:g} to {lr:g} between two shards of a step",
                "call the schedule's step() only where run.step() returns True",
            )
        self._lr = lr
        if self._resumed_schedules:
            self._check_schedules(self._started.training.at.epoch)
        try:
            self._loss = self._learner.step(losses, self._ends_step)
        except (RanksChanged, ShardsDiffer, ShardHashes) as change:  # no update: the step is done again, or ended
            self._change, self._is_stepped = change, True
            return False
        self._is_stepped = self._has_steps = True
        if self._ends_step and not self._is_saveable:
            self._learner.optimizer_state()  # raises now what would end the run at its first checkpoint
            self._is_saveable = True
        phases.begin(SCRIPT)
        return self._ends_step

    def _check_schedules(self, epoch: int) -> None:
        """Raise UserError if the script repeats the step that a schedule made at the beginning of a resumed epoch."""
        now, resumed, self._resumed_schedules = self._learner.schedule_steps(), self._resumed_schedules, {}
        for name, steps in resumed.items():
            if steps in (epoch, epoch + 1) and now[name] > steps:
                raise UserError(
                    f"the schedule {name}, which steps once an epoch, steps in epoch {epoch + 1} again, as the run "
                    "was resumed in the middle of it",
                    "call its step() after the last step of each epoch: if run.step(losses) and run.ends_epoch",
                )

    def _count_step(self, started: StartedRun) -> None:
        assert self._loss is not None
        self._is_counted = True
        started.training.after_step(self._loss)

    def _leave(self, started: StartedRun) -> None:
        """The script has left the loop before its end."""
        phases.is_leaving = True
        if isinstance(self._change, ShardsDiffer):
            raise self._change
        if self._difference:
            raise self._difference
        training = started.training

        def to_the_end() -> None:
            training.settle()
            if training.at.rows_in_epoch:  # else the epoch before has just ended
                training.end_epoch()
            self._finish(started)

        if isinstance(self._change, RanksChanged):  # the last step was no update
            started.survivors.renew(self._change)
        elif self._is_stepped and self._ends_step and not self._is_counted:
            try:
                self._count_step(started)
            except RanksChanged as change:
                started.survivors.renew(change)
        elif self._loss is not None and not self._ends_step:
            problem = f"the script left its loop between two shards of step {training.at.step}"
            raise UserError(problem, "leave it only where run.step() returns True")
        started.survivors.do(to_the_end)

    def _finish(self, started: StartedRun) -> None:
        result.finish(started)
        self._is_complete = True
