"""Where a run starts: at the beginning, at a checkpoint, or at the state that an elastic job keeps in memory."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import NamedTuple

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, Dataset, ElasticMemory, Learner, OptimizerState, Position
from hvdtrain.runs import checkpoints, console, record
from hvdtrain.runs.console import log
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import Entry


class Rule(enum.Enum):
    """What holds for an option of a resumed run that differs from that of the checkpoint."""

    SAME = "an error: the checkpoint has no meaning with another value"
    POSITION = "the position is counted anew, so that each row is still taken once in an epoch"
    STATE = "the optimizer's state is converted; what the checkpoint lacks starts from its initial value"
    FROM_HERE = "it applies to the steps from here on"


RULES = {
    "model": Rule.SAME,
    "data": Rule.SAME,
    "seed": Rule.SAME,
    "init": Rule.SAME,
    "batch_size": Rule.POSITION,
    "batch_scope": Rule.POSITION,
    "remainder": Rule.POSITION,
    "framework": Rule.STATE,
    "optimizer": Rule.STATE,
    "momentum": Rule.STATE,
    "precision": Rule.STATE,
    "op": Rule.STATE,
    "recipe": Rule.FROM_HERE,
    "strategy": Rule.FROM_HERE,
    "api": Rule.FROM_HERE,
    "kvstore": Rule.FROM_HERE,
    "epochs": Rule.FROM_HERE,
    "max_steps": Rule.FROM_HERE,
    "lr": Rule.FROM_HERE,
    "nesterov": Rule.FROM_HERE,
    "weight_decay": Rule.FROM_HERE,
    "schedule": Rule.FROM_HERE,
    "warmup_epochs": Rule.FROM_HERE,
    "lr_gamma": Rule.FROM_HERE,
    "lr_step_epochs": Rule.FROM_HERE,
    "clip_norm": Rule.FROM_HERE,
    "accumulate": Rule.FROM_HERE,
    "compression": Rule.FROM_HERE,
    "on_nan": Rule.FROM_HERE,
}
"""The rule of each option of `Config`."""


class Start(NamedTuple):
    """Where a run starts."""

    folder: Path
    position: Position
    parent: Entry | None = None
    """The checkpoint that it resumes from, of this run or another; known on rank 0 only."""


def resume(
    config: Config, runtime: RuntimeOptions, learner: Learner, dataset: Dataset, memory: ElasticMemory | None = None
) -> Start:
    """Where the run starts; loads the state to resume, if there is one, into the learner.

    Call it on every rank. Raises UserError if there is no usable checkpoint, or it does not match the options.
    """
    group = learner.group
    if memory:  # Horovod makes a rank that stayed the new rank 0
        kept = group.broadcast(memory.saved if group.rank == 0 else None)
        if kept:
            folder, state = kept
            console.open_log(folder, group.rank, runtime.quiet)
            return Start(folder, _restore(config, learner, dataset, folder, state))
    path: Path | None = None
    saved: Checkpoint | None = None
    if runtime.resume or runtime.auto_resume:  # only rank 0 reads: other hosts need not have the file
        path, saved = group.broadcast(_find(runtime) if group.rank == 0 else None)
    resumed = path.parent.parent if path else None
    folder = group.broadcast(record.choose_folder(config, runtime, group.size, resumed) if group.rank == 0 else None)
    console.open_log(folder, group.rank, runtime.quiet)
    if path is None or saved is None:
        return Start(folder, Position(global_batch=config.global_batch(group.size), seed=config.seed))
    parent = checkpoint_folder.entry_of(path) if group.rank == 0 else None
    return Start(folder, _restore(config, learner, dataset, path, saved), parent)


def _find(runtime: RuntimeOptions) -> tuple[Path | None, Checkpoint | None]:
    """The checkpoint to resume from; None, None where --auto-resume finds no checkpoint yet."""
    if runtime.resume:
        return checkpoints.newest(runtime.resume)
    folder = runtime.runs / runtime.name
    return checkpoints.newest(folder) if checkpoint_folder.paths(folder / "checkpoints") else (None, None)


def _restore(config: Config, learner: Learner, dataset: Dataset, path: Path, saved: Checkpoint) -> Position:
    """Load a state, read from `path`, into the learner; returns its position, as this job counts."""
    samples = len(dataset.train_images)
    _check_same(config, dataset, path, saved)
    _check_position(path, saved.position, samples)
    checkpoints.network(path, saved)
    learner.load(saved.weights)
    position = recounted(config, saved.position, samples, learner.group.size)
    log.info("resumed from %s: epoch %d, step %d", path, position.epoch + 1, position.step)
    if position.step != saved.position.step:
        log.info("which was step %d, with batches of %d rows", saved.position.step, saved.position.global_batch)
    _restore_optimizer(config, learner, path, saved)
    return position


def _check_same(config: Config, dataset: Dataset, path: Path, saved: Checkpoint) -> None:
    """Raise UserError for an option with Rule.SAME that is not that of the checkpoint."""
    values = {
        "model": (config.model, saved.model),
        "seed": (config.seed, saved.position.seed),
        "init": (config.init, saved.init or config.init),
        "data": (dataset.fingerprint[:16], saved.data[:16]),
    }
    for option in (name for name, rule in RULES.items() if rule is Rule.SAME):
        ours, theirs = values[option]
        if ours != theirs:
            name = "the fingerprint of --data" if option == "data" else f"--{option}"
            raise UserError(
                f"--resume {path}: {name} is {ours} here and {theirs} in the checkpoint",
                "use the options and the data of the run to resume",
            )


def _check_position(path: Path, position: Position, samples: int) -> None:
    """Raise UserError for a position at which no run on that many samples can be."""
    batch, rows = position.global_batch, position.rows_in_epoch
    if rows <= samples and batch:
        complete = position.epoch + 1
        for remainder in ("drop", "pad"):  # exact has as many steps as pad
            steps, left = (sharding.steps_per_epoch(count, batch, remainder) for count in (samples, samples - rows))
            if position.step == complete * steps - left:
                return
    raise UserError(
        f"{path}: no run on {samples} images is at step {position.step}, after {position.epoch} epochs and {rows} rows "
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


def _restore_optimizer(config: Config, learner: Learner, path: Path, saved: Checkpoint) -> None:
    """Load the optimizer's state, if the checkpoint has that of this optimizer."""
    state = _own_state(learner, saved)
    if saved.framework != config.framework:
        state = state._replace(extra={})
        log.info("weights and optimizer state come from %s", saved.framework)
    required = {name: array.shape for name, array in learner.optimizer_state().arrays.items()}
    if required.keys() - state.arrays.keys():
        log.warning("the checkpoint has no optimizer state of %s, which starts from zero", config.optimizer)
        return
    try:
        if any(state.arrays[name].shape != shape for name, shape in required.items()):
            raise ValueError("its shapes are not those of the network")
        learner.load_optimizer_state(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{path}: its optimizer state cannot be loaded ({error})", "resume another checkpoint"
        ) from None


def _own_state(learner: Learner, saved: Checkpoint) -> OptimizerState:
    """This rank's optimizer state: that of rank 0, unless each rank has its own and had its own."""
    group, ranks = learner.group, 1 + len(saved.other_ranks)
    if ranks == 1:
        return saved.optimizer
    if learner.state_by_rank and ranks == group.size:
        return saved.optimizer._replace(arrays=(saved.optimizer.arrays, *saved.other_ranks)[group.rank])
    log.warning("each of the checkpoint's %d ranks has its own optimizer state; all ranks resume from rank 0's", ranks)
    return saved.optimizer
