"""The state of a run: where it starts, or resumes.

Also what a run may change when it resumes, the position as it counts from then on, and a learner that has another state
for a while: the moving average of its weights (`--ema`), or what a trial leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.collectives.arrays import broadcast_arrays
from hvdtrain.config.option import Resume, facts
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.errors import FolderLost, UserError, WriteError
from hvdtrain.interfaces.learner import (
    AVERAGE,
    IS_DELTA,
    MEAN,
    RANK_ERROR,
    Checkpoint,
    Learner,
    OptimizerState,
    Position,
)
from hvdtrain.interfaces.reading import Dataset
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints, console, record
from hvdtrain.runs.console import log
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.files import write_fault
from hvdtrain.tasks.target import Target
from hvdtrain.training import consistency, starting_weights
from hvdtrain.training.run import RunContext
from hvdtrain.training.starting_weights import StartingWeights


class Start(NamedTuple):
    position: Position
    resumed: Path | None = None
    """The checkpoint that it resumes from, of this run or another."""
    is_finished: bool = False
    """Whether the run in the folder has its last step and its result, so that nothing is left to do."""
    losses: list[Any] = []  # noqa: RUF012  (a NamedTuple's default is never written to)
    """See `IntervalCollector.losses`."""
    is_settled: bool = True
    """Whether all that was due after the last step is done."""


def resume(run: RunContext, replays: bool = False) -> Start:
    """Where the run starts; gives it its folder, and loads the state to resume, if there is one, into the learner.

    replays: whether other arithmetic than the checkpoint's is allowed, see `consistency.check_resumed`. Call it on
    every rank; rank 0 acquires the lock of the folder. Raises UserError, on all ranks, if another job holds it, if
    there is no usable checkpoint, or it does not match the options.
    """
    config, learner, group = run.config, run.learner, run.group
    local_saved, weights = None, None
    opened: tuple[Path | None, Path | None, bool] = None, None, False
    refusal: tuple[str, str] | None = None
    if group.rank == 0:  # only rank 0 reads: other hosts need not have the files
        try:
            folder, path, local_saved, weights = _open(run)
            opened = folder, path, record.is_finished(folder)
        except UserError as error:
            refusal = error.reason, error.remedy
    refusal, (folder, path, has_result) = group.broadcast((refusal, opened))
    if refusal:  # on all ranks: those that lost rank 0 in a collective would print a traceback each
        raise UserError(*refusal)
    run.folder, run.parent = folder, "" if path is None or path.is_relative_to(folder) else f"{path}"
    saved = broadcast_checkpoint(group, local_saved and _for_ranks(local_saved, learner))
    is_finished = has_result and saved is not None and run.is_over(_recounted(run, saved))
    if is_finished:
        console.close_log()  # that of another run, which this process has trained before
    else:
        open_log(folder, group, run.runtime)
    if path is None or saved is None:
        _begin_with(learner, weights)
        rows = config.global_batch(group.size)
        return Start(Position(global_batch=rows, seed=config.seed, best_by=config.score_choice))
    if not replays and (run.in_shards or saved.arithmetic):
        consistency.check_resumed(config, run.arithmetic, path, saved)
    restore(run, path, saved)
    if local_saved and _drops_states(local_saved, learner):
        ranks = 1 + len(local_saved.other_ranks)
        log.warning(
            "each of the checkpoint's %d ranks has its own optimizer state; all ranks resume from rank 0's", ranks
        )
    return Start(_resumed(learner, path, saved), path, is_finished)


def _begin_with(learner: Learner, local: StartingWeights | None) -> None:
    """Load the weights of --weights that rank 0 has read, if there are some; call it on every rank."""
    if given := broadcast_arrays(learner.group, local.weights if local else {}):
        learner.load({**learner.weights(), **given})
    if local:
        (log.info if local.is_complete else log.warning)("%s", local.text)


def open_log(folder: Path, group: Group, runtime: RuntimeOptions) -> None:
    """Open this rank's log; rank 0 has the console. Raises UserError if the file cannot be created."""
    console.open_log(folder, group.place, on_console=group.rank == 0 and not runtime.quiet)


def _open(run: RunContext) -> tuple[Path, Path | None, Checkpoint | None, StartingWeights | None]:
    """The run's folder, whose lock is acquired, and the checkpoint to resume from, if any, with its path; or --weights.

    Raises UserError for a checkpoint of another run that cannot be resumed, for which no folder is created.
    """
    runtime, lock = run.runtime, run.lock
    place, folder = runtime.resumed, None
    if runtime.auto_resume:
        folder = record.auto_resumed_folder(runtime)
    elif place and not runtime.name:
        folder = checkpoints.run_to_continue(place)
    if folder:
        lock.acquire(folder)  # before reading: the job that has the folder may write a newer checkpoint
    if folder and place and not runtime.auto_resume and not checkpoints.run_to_continue(place):
        raise UserError(f"--resume {place}: another job has just written a newer checkpoint of that run", "try again")
    if runtime.auto_resume and folder and checkpoint_folder.paths(folder / "checkpoints"):
        place = folder
    path, saved = checkpoints.newest(place) if place else (None, None)
    if path and saved and not folder:
        _check_saved(run, path, saved)
        if run.is_over(at := _recounted(run, saved)):
            reason = f"--resume {path}: has step {at.step} of {run.last_step}, so that a new run makes none"
            raise UserError(reason, "raise --epochs, --max-steps or --patience", option="resume")
    weights = None if path else starting_weights.read(run.config, run.learner)
    if not folder:
        folder = record.create_folder(run.config, runtime, run.group.size, lock)
    return folder, path, saved, weights


def broadcast_checkpoint(group: Group, saved: Checkpoint | None, root: int = 0) -> Checkpoint | None:
    """The checkpoint of rank `root`, on every rank; of other ranks' optimizers a rank gets its own arrays only."""
    if described := saved:
        empty = saved.optimizer._replace(arrays={})
        described = dataclasses.replace(saved, weights={}, optimizer=empty, other_ranks=({},) * len(saved.other_ranks))
    described = group.broadcast(described, root)
    if described is None:
        return None
    local = saved if saved and group.rank == root else described
    weights = broadcast_arrays(group, local.weights, root)
    first = broadcast_arrays(group, local.optimizer.arrays, root)
    others: list[Weights] = []
    for rank, arrays in enumerate(local.other_ranks, 1):
        received = broadcast_arrays(group, arrays, root)
        others.append(received if rank == group.rank else {})
    optimizer = local.optimizer._replace(arrays=first)
    return dataclasses.replace(local, weights=weights, optimizer=optimizer, other_ranks=tuple(others))


def restore(run: RunContext, path: Path, saved: Checkpoint) -> None:
    """Load a state into the learner. path: where it is from, for messages.

    Raises UserError if it is not of these options, or not of this data.
    """
    learner = run.learner
    _check_saved(run, path, saved)
    try:
        learner.load(saved.weights)
    except ValueError as error:
        raise UserError(f"--resume {path}: {error}", "resume with the model that wrote the checkpoint") from None
    learner.load_averages(saved.averages)
    learner.resumed = saved.position, _recounted(run, saved)
    _restore_optimizer(run.config, learner, path, saved)


def _resumed(learner: Learner, path: Path, saved: Checkpoint) -> Position:
    """The position of a checkpoint that was restored, as this job counts; logs it."""
    _, position = learner.resumed
    log.info("resumed from %s: epoch %d, step %d", f"{path}", position.epoch + 1, position.step)
    if position.step != saved.position.step:
        log.info("which was step %d, with batches of %d rows", saved.position.step, saved.position.global_batch)
    return position


def _check_saved(run: RunContext, path: Path, saved: Checkpoint) -> None:
    """Raise UserError unless the checkpoint is of these options and data, and of what is trained."""
    config, target = run.config, run.target
    check_options(config, target, run.dataset, path, saved)
    check_position(path, saved.position, run.samples)
    if target.is_portable:
        checkpoints.network(path, saved)
    elif saved.framework != config.framework:
        raise UserError(
            f"--resume {path}: the {target.kind} {config.model} was trained in {saved.framework}, and stays there",
            f"use --framework {saved.framework}",
        )


def _restore_optimizer(config: Config, learner: Learner, path: Path, saved: Checkpoint) -> None:
    """Load the optimizer's state, if the checkpoint has that of this optimizer, with what this rank has by itself."""
    local = ({}, *saved.other_ranks)[learner.group.rank] if saved.other_ranks else {}
    state = saved.optimizer._replace(arrays=saved.optimizer.arrays | local)
    of_mean, state = state.under(MEAN), state.without(MEAN).without(AVERAGE)
    if saved.framework != config.framework:  # in whose order of elements the mean's state is
        state, of_mean = state._replace(extra={}), {}
        log.info("weights and optimizer state come from %s", saved.framework)
    if learner.mean:
        learner.mean.load(of_mean if (IS_DELTA in of_mean) == learner.state_by_rank else {})
    try:
        if not learner.accepts_state(state):
            name = config.optimizer if learner.learning_rate is None else "this optimizer and schedule"
            log.warning("the checkpoint has no optimizer state of %s, which starts from zero", name)
            return
        learner.load_optimizer_state(state)
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{path}: its optimizer state cannot be loaded ({error})", "resume another checkpoint"
        ) from None


def check_options(config: Config, target: Target, dataset: Dataset, path: Path, saved: Checkpoint) -> None:
    """Raise UserError for an option with Resume.SAME that is not that of the checkpoint."""
    if not target.is_of(saved.network):
        raise UserError(
            f"--resume {path}: --model {config.model} is not that of the checkpoint ({saved.model}), or its layers, "
            "the columns of its table or --arg differ",
            "leave out --model and --arg, and give --columns and --target if the run read its table in another way",
        )
    values = {
        "seed": (config.seed, saved.position.seed),
        "init": (config.init, saved.init or config.init),
        "data": (dataset.fingerprint[:16], saved.data[:16]),
    }
    for option in (name for name, about in facts(Config).items() if about.resume is Resume.SAME):
        ours, theirs = values[option]
        if ours != theirs:
            name = "the fingerprint of --data" if option == "data" else f"--{option}"
            raise UserError(
                f"--resume {path}: {name} is {ours} here and {theirs} in the checkpoint",
                "use the options and the data of the run to resume",
            )


def check_position(path: Path, position: Position, samples: int) -> None:
    """Raise UserError for a position at which no run on that many samples can be."""
    batch, rows = position.global_batch, position.rows_in_epoch
    if rows <= samples and batch:
        complete = position.epoch + 1
        for remainder in ("drop", "pad"):  # exact has as many steps as pad
            steps, left = (sharding.steps_per_epoch(count, batch, remainder) for count in (samples, samples - rows))
            if position.step == complete * steps - left:
                return
    raise UserError(
        f"{path}: no run on {samples} rows is at step {position.step}, after {position.epoch} epochs and {rows} rows "
        f"in batches of {batch}",
        "resume another checkpoint",
    )


def recounted(config: Config, position: Position, samples: int, size: int) -> Position:
    """The position as `size` ranks count it, whose global batch or --remainder may differ from the checkpoint's.

    Rows already taken in this epoch stay taken; if what is left of it has no step, the next epoch begins. Steps are
    renumbered so that the epoch ends at a multiple of the new steps per epoch, which the learning rate follows.
    """
    batch = config.global_batch(size)
    left = sharding.steps_per_epoch(samples - position.rows_in_epoch, batch, config.remainder)
    step = (position.epoch + 1) * sharding.steps_per_epoch(samples, batch, config.remainder) - left
    moved = dataclasses.replace(position, step=step, global_batch=batch)
    return moved if left else dataclasses.replace(moved, epoch=position.epoch + 1, rows_in_epoch=0)


def _recounted(run: RunContext, saved: Checkpoint) -> Position:
    return recounted(run.config, saved.position, run.samples, run.group.size)


def _drops_states(saved: Checkpoint, learner: Learner) -> bool:
    """Whether ranks had optimizer states of their own, which these ranks cannot have."""
    others = saved.other_ranks
    has_same = learner.state_by_rank and 1 + len(others) == learner.group.size
    return bool(others and others[0].keys() - {RANK_ERROR}) and not has_same


def _for_ranks(saved: Checkpoint, learner: Learner) -> Checkpoint:
    """The checkpoint as these ranks resume it: of what each had by itself, they have the same, or what replaces it."""
    ranks, size = 1 + len(saved.other_ranks), learner.group.size
    if ranks == 1:
        return saved
    others = saved.other_ranks
    if _drops_states(saved, learner):
        others = tuple({RANK_ERROR: arrays[RANK_ERROR]} if RANK_ERROR in arrays else {} for arrays in others)
    optimizer = saved.optimizer
    if ranks != size and RANK_ERROR in others[0]:  # the mean of all gradients then has the same still to come
        errors = [arrays[RANK_ERROR] for arrays in (optimizer.arrays, *others)]
        mean = np.mean(errors, axis=0, dtype=np.float64).astype(np.float32)
        optimizer = optimizer._replace(arrays=optimizer.arrays | {RANK_ERROR: mean})
    return dataclasses.replace(saved, optimizer=optimizer, other_ranks=others if ranks == size else ())


@contextlib.contextmanager
def restoring(learner: Learner, with_optimizer: bool = False) -> Iterator[Weights]:
    """After a `with` block, let the learner have its weights and their averages again, and its optimizer's state.

    The block gets the weights.
    """
    weights, averages = _copied(learner.weights()), learner.averages()
    state = learner.optimizer_state() if with_optimizer else OptimizerState({})
    state = state._replace(arrays=_copied(state.arrays))
    try:
        yield weights
    finally:
        learner.load(weights)
        learner.load_averages(averages)
        if with_optimizer:
            learner.load_optimizer_state(state)


@contextlib.contextmanager
def averaged(learner: Learner) -> Iterator[None]:
    """Let the learner have the averages of its weights, if there are some, in a `with` block; then the weights again.

    Running statistics stay those of training.
    """
    if not (averages := learner.averages()):
        yield
        return
    with restoring(learner) as weights, learner.evaluation_mode():
        learner.load(weights | averages)
        yield


def _copied(arrays: Weights) -> Weights:
    return {name: array.copy() for name, array in arrays.items()}


@contextlib.contextmanager
def must_write(what: str, folder: Path) -> Iterator[None]:
    """Turn an OSError into an error about `what`, in the run's folder.

    Raises WriteError if the disk does not accept it, FolderLost if the folder is gone: a job started again would
    then train from the beginning.
    """
    try:
        yield
    except OSError as error:
        why, remedy = write_fault(error, folder)
        if os.path.isdir(folder):
            raise WriteError(f"{what} cannot be written ({why})", remedy) from None
        raise FolderLost(f"{what} cannot be written ({why}), as {folder} is gone", "bring it back") from None
