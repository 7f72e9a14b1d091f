"""Steps of a learner with pieces of `drawn_models` in the process of a test, and its framework's own loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdtrain.datasets import sharding
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights
from hvdtrain.tasks.progress import Progress, place
from hvdtrain.tasks.user import UserTask, make_task
from support.drawn_models import EPOCHS, LR, Drawn, Piece, plain_batches, task_class
from support.learners import learner

GRADIENTS = ("forces", "reentrant checkpoint", "torch.func", "inference mode")
"""Pieces of PyTorch models that are trained with their trial and evaluations (test_trial.py)."""


def of_pieces(framework: str, *pieces: str, **options: Any) -> Drawn:
    """A model of these pieces. options: of Drawn."""
    return Drawn(framework, 3, pieces, **options)


def task_of(drawn: Drawn, **changes: Any) -> UserTask:
    """Its task, with other attributes or methods."""
    return make_task("task.py:Task", type("Task", (task_class(drawn),), changes))


def made(framework: str, model: Any, losses: Any = None) -> UserTask:
    """A task of another model, with losses that take outputs and labels."""
    changes = {"model": staticmethod(model), **({"losses": staticmethod(losses)} if losses else {})}
    return task_of(of_pieces(framework), **changes)


def batches(drawn: Drawn, shards: int = 0) -> list[Batch]:
    """The steps of one rank, whole or in shards."""
    steps, cut = [], sharding.Cut.of(0, 1, shards)
    for order in [rows for epoch in range(EPOCHS) for rows in plain_batches(drawn, epoch)]:
        parts = [
            Batch(tuple(array[rows] for array in drawn.data[0]), weights, LR, len(steps), rows, part)
            for part, (rows, weights) in enumerate(sharding.slices_of_step(order, 0, len(order), "exact", cut))
        ]
        nothing, by_rank = ((), np.ones(0), LR, len(steps), order), (tuple(range(len(parts))),)
        steps.append(Batch(*nothing, shards=tuple(parts), by_rank=by_rank) if shards else parts[0])
    return steps


def assert_close(weights: Weights, expected: Weights, tolerance: float = 2e-5) -> None:
    """All of the expected arrays, up to rounding."""
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def learner_of(drawn: Drawn, task: UserTask | None = None, **options: Any) -> Any:
    return learner(drawn.framework, task or task_of(drawn), **{"lr": LR, "seed": drawn.seed, **options})


def tried(pieces: dict[str, Piece]) -> list[str]:
    """Those that the test's process can train to the weights of another loop."""
    return [name for name, piece in pieces.items() if not (piece.draws or piece.fixed or piece.outside)]


def _train(trained: Any, batch: Batch, drawn: Drawn) -> None:
    place.now = Progress(batch.step, batch.step // len(plain_batches(drawn, 0)), training=True)
    trained.train_step(batch)


def check(drawn: Drawn, task: UserTask | None = None, resumes: bool = True, **options: Any) -> None:
    """A task's steps, with evaluations and a resume before the last, and those of the framework's own loop."""
    evaluates = not drawn.has("in_evaluation")
    expected = drawn.kinds.plain(drawn, evaluates)
    trained = learner_of(drawn, task, **options)
    *early, last = batches(drawn, options.get("shards", 0))
    for batch in early:
        _train(trained, batch, drawn)
        if evaluates and resumes:
            trained.eval_step(drawn.data[1])
    if resumes:
        before, trained = trained, learner_of(drawn, **options)
        trained.load(before.weights())
        trained.load_optimizer_state(before.optimizer_state())
    _train(trained, last, drawn)
    weights = trained.weights()
    if drawn.framework == "tensorflow":  # as a plain loop has no names that last
        weights = {name.partition(".")[0]: array for name, array in weights.items()}
    assert_close(weights, expected, drawn.tolerance)
