"""What a run may change when it resumes from a checkpoint, and the position as it counts from then on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hvdtrain.config.option import Resume, facts
from hvdtrain.config.options import Config
from hvdtrain.datasets import sharding
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, Dataset, Position
from hvdtrain.tasks.target import Target


def check_options(config: Config, target: Target, dataset: Dataset, path: Path, saved: Checkpoint) -> None:
    """Raise UserError for an option with Resume.SAME that is not that of the checkpoint."""
    if target.record() != saved.network:
        raise UserError(
            f"--resume {path}: --model {config.model} is not that of the checkpoint ({saved.model}), or its layers or "
            "--set differ",
            "leave out --model and --set, which then are those of the checkpoint",
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
