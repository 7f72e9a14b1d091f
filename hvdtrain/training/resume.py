"""Where a run starts: at the beginning, at a checkpoint, or at the state that an elastic job keeps in memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, Dataset, ElasticMemory, Learner, OptimizerState, Position
from hvdtrain.runs import checkpoints, console, record
from hvdtrain.runs.console import log
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import Entry
from hvdtrain.training import compatibility


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
    compatibility.check_options(config, dataset, path, saved)
    compatibility.check_position(path, saved.position, samples)
    checkpoints.network(path, saved)
    learner.load(saved.weights)
    position = compatibility.recounted(config, saved.position, samples, learner.group.size)
    log.info("resumed from %s: epoch %d, step %d", path, position.epoch + 1, position.step)
    if position.step != saved.position.step:
        log.info("which was step %d, with batches of %d rows", saved.position.step, saved.position.global_batch)
    _restore_optimizer(config, learner, path, saved)
    return position


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
