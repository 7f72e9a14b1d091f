"""Before a run begins: what training and evaluations will do with a user's model is done once, on its first rows."""

from __future__ import annotations

import numpy as np

from hvdtrain.datasets import sharding
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import changed_names
from hvdtrain.interfaces.reading import Batch
from hvdtrain.tasks.target import TRIED_ROWS
from hvdtrain.training.evaluation import eval_pieces
from hvdtrain.training.run import RunContext


def try_out(run: RunContext) -> None:
    """Learn how the model is evaluated. Raises UserError if it fails, or does not take all numbers of rows."""
    config, target, part = run.config, run.target, run.dataset.evaluated
    if target.is_portable:
        return
    whole, last = _lengths(run, run.global_batch), set[int]()
    if config.remainder != "drop" and run.last_step >= run.steps_per_epoch:
        last = _lengths(run, run.samples % run.global_batch)
    with run.learner.unchanged(is_trial=True):
        is_other = target.needed_rows or min(whole) < TRIED_ROWS * config.accumulate * run.learner.devices
        for rows in sorted(last | whole if is_other else last - whole):
            _try_step(run, rows, "use another --batch-size" if rows in whole else "use --remainder drop")
        pieces = [piece for rank in range(run.group.size) for piece in eval_pieces(run, part, rank)]
        if pieces:
            arrays, before = target.tried_rows(run.dataset, part, min(map(len, pieces))), run.learner.weights()
            target.guard(f"an evaluation of {len(arrays[0])} row(s)", run.learner.evaluate, arrays)
            run.learner.changes_in_evaluation = bool(changed_names(before, run.learner.weights()))


def _lengths(run: RunContext, rows: int) -> set[int]:
    """The numbers of rows of a rank or shard, in a step of so many rows."""
    parts = run.config.shards or run.group.size
    cut = sharding.Cut(parts, tuple(range(parts if rows else 0)))
    slices = sharding.slices_of_step(np.arange(rows), 0, rows, "exact", cut)
    return {len(part.rows) for part in slices if part.weights.any() or not run.config.shards}


def _try_step(run: RunContext, rows: int, remedy: str) -> None:
    batch = Batch(run.target.tried_rows(run.dataset, "train", rows), np.ones(rows, np.float32), 0.0, 0, np.arange(rows))
    where = f"a step with {rows} row(s) of a {'shard' if run.config.shards else 'rank'}"
    try:
        run.target.guard(where, run.learner.try_step, batch)
    except UserError as error:
        raise UserError(error.reason, remedy, option="remainder" if "drop" in remedy else "batch_size") from None
