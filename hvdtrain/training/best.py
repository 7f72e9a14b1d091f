"""The test of the best checkpoint, at the end of a run that has validation data."""

from __future__ import annotations

import contextlib
from typing import Any

from hvdtrain.errors import HvdtrainError
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.runs import checkpoints
from hvdtrain.runs.console import log
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import Entry
from hvdtrain.training.evaluation import Scores
from hvdtrain.training.run import RunContext
from hvdtrain.training.start import StartedRun
from hvdtrain.training.state import broadcast_checkpoint


def best_entry(run: RunContext) -> Entry | None:
    """The checkpoint with the best score, as rank 0 finds it; None if there is none."""
    with contextlib.suppress(OSError):
        best = checkpoint_folder.best_first(checkpoint_folder.entries(run.folder / "checkpoints"))
        return best[0] if best else None
    return None


def test_best(started: StartedRun, last: dict[str, Any]) -> dict[str, Any] | None:
    """The scores of the best checkpoint, by which a run with validation data is compared; call it on every rank.

    last: those of the last weights, which the learner has before and after. None if there is no such checkpoint, or it
    cannot be read.
    """
    run, training = started.run, started.training
    entry = best_entry(run) if run.is_rank_0 else None
    name, step = run.group.broadcast((entry.path.name, entry.step) if entry else ("", -1))
    if not name:
        return None
    if step == training.at.step:
        return {"checkpoint": name, "step": step, **last}
    best = broadcast_checkpoint(run.group, _read(entry) if entry else None)
    if best is None:
        return None
    weights = {name: array.copy() for name, array in run.learner.weights().items()}
    averages = run.learner.averages()
    try:
        run.learner.load(best.weights)
        run.learner.load_averages(best.averages)
        validated, tested = (training.evaluate(part, step).scores for part in ("validation", "test"))
    finally:  # also where ranks have changed, which end the run with these weights again
        run.learner.load(weights)
        run.learner.load_averages(averages)
    return {"checkpoint": name, "step": step, "validation": as_json(validated), "test": as_json(tested)}


def _read(entry: Entry) -> Checkpoint | None:
    try:
        return checkpoints.load(entry.path)
    except (HvdtrainError, OSError) as error:
        log.warning("the best checkpoint is not tested: %s", error)
        return None


def as_json(scores: Scores) -> dict[str, Any]:
    """Scores as a record has them."""
    return {"loss": scores.loss, "metrics": scores.metrics, "rows": scores.rows}
