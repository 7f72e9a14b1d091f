"""Where a run starts: at the beginning, at a checkpoint, or at the state that an elastic job keeps in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, Dataset, ElasticMemory, Learner, Position
from hvdtrain.runs import checkpoints, console, record
from hvdtrain.runs.console import log
from hvdtrain.runs.lock import RunLock


def resume(
    config: Config,
    runtime: RuntimeOptions,
    learner: Learner,
    dataset: Dataset,
    lock: RunLock,
    memory: ElasticMemory | None = None,
) -> tuple[Path, Position]:
    """The run's folder and the position to start from; loads the state to resume, if there is one, into the learner.

    Call it on every rank; rank 0 acquires the lock of the folder. Raises UserError if another job holds it, if there
    is no usable checkpoint, or it does not match the options.
    """
    group = learner.group
    if memory:  # Horovod makes a rank that stayed the new rank 0
        kept = group.broadcast(memory.saved if group.rank == 0 else None)
        if kept:
            folder, state = kept
            if group.rank == 0:
                lock.acquire(folder)
            console.open_log(folder, group.rank, runtime.quiet)
            return folder, _restore(config, learner, dataset, folder, state)
    # Only rank 0 reads: other hosts need not have the files.
    folder, path, saved = group.broadcast(_open(config, runtime, group.size, lock) if group.rank == 0 else None)
    console.open_log(folder, group.rank, runtime.quiet)
    if path is None or saved is None:
        return folder, Position(global_batch=config.global_batch(group.size), seed=config.seed)
    return folder, _restore(config, learner, dataset, path, saved)


def _open(
    config: Config, runtime: RuntimeOptions, size: int, lock: RunLock
) -> tuple[Path, Path | None, Checkpoint | None]:
    """The run's folder, whose lock is acquired, and the checkpoint to resume from, if any, with its path."""
    folder = record.continued_folder(runtime)
    if folder:
        lock.acquire(folder)  # before reading: the job that has the folder may write a newer checkpoint
        return folder, *_find(runtime)
    path, saved = _find(runtime)
    folder = record.create_folder(config, runtime, size)
    lock.acquire(folder)
    return folder, path, saved


def _find(runtime: RuntimeOptions) -> tuple[Path | None, Checkpoint | None]:
    """The checkpoint to resume from; None, None for a new run, and where --auto-resume finds no checkpoint yet."""
    if runtime.resume:
        return checkpoints.newest(runtime.resume)
    if not runtime.auto_resume:
        return None, None
    folder = runtime.runs / runtime.name
    return checkpoints.newest(folder) if checkpoints.listed(folder / "checkpoints") else (None, None)


def _restore(config: Config, learner: Learner, dataset: Dataset, path: Path, saved: Checkpoint) -> Position:
    """Load a state, read from `path`, into the learner; returns its position, as this job counts."""
    expected = (
        ("--model", config.model, saved.model),
        ("--seed", config.seed, saved.position.seed),
        ("the fingerprint of --data", dataset.fingerprint[:16], saved.data[:16]),
    )
    for name, ours, theirs in expected:
        if ours != theirs:
            raise UserError(
                f"--resume {path}: {name} is {ours} here and {theirs} in the checkpoint",
                "use the options and the data of the run to resume",
            )
    checkpoints.network(path, saved)
    learner.load(saved.weights)
    position = rebatched(config, saved.position, len(dataset.train_images), learner.group.size)
    log.info("resumed from %s: epoch %d, step %d", path, position.epoch + 1, position.step)
    _restore_optimizer(config, learner, saved)
    return position


def rebatched(config: Config, position: Position, samples: int, size: int) -> Position:
    """The position as `size` ranks count it, whose global batch may differ, and with it the steps of an epoch.

    Rows already taken in this epoch stay taken. Steps are renumbered so that the epoch ends at a multiple of the new
    steps per epoch, which the learning rate follows.
    """
    batch = config.global_batch(size)
    if batch == position.global_batch:
        return position
    log.info("the global batch changes from %d to %d", position.global_batch, batch)
    left = sharding.steps_per_epoch(samples - position.rows_in_epoch, batch, config.remainder)
    steps = sharding.steps_per_epoch(samples, batch, config.remainder)
    step = (position.epoch + 1) * steps - left
    moved = dataclasses.replace(position, step=step, global_batch=batch)
    return moved if left else dataclasses.replace(moved, epoch=position.epoch + 1, rows_in_epoch=0)


def _restore_optimizer(config: Config, learner: Learner, saved: Checkpoint) -> None:
    """Load the optimizer's state, if the checkpoint has that of this optimizer."""
    state = saved.optimizer
    if saved.framework != config.framework:
        state = state._replace(extra={})
        log.info("weights and optimizer state come from %s", saved.framework)
    required = set(learner.optimizer_state().arrays)
    if required - set(state.arrays):
        log.warning("the checkpoint has no optimizer state of %s, which starts from zero", config.optimizer)
    else:
        learner.load_optimizer_state(state)
