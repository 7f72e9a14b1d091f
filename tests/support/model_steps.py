"""Tasks of any model, and the rows of three steps, for learners that are compared with their framework's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hvdtrain.datasets import sharding
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights
from hvdtrain.tasks.user import UserTask, make_task
from support.learners import learner

FEATURES, CLASSES, SIZE, STEPS, LR = 6, 5, 12, 3, 0.1
RANDOM = np.random.default_rng(8)
ROWS = RANDOM.normal(size=(STEPS * SIZE, FEATURES)).astype(np.float32), RANDOM.integers(0, CLASSES, STEPS * SIZE)


def made(model: Callable[[], Any], losses: Callable[[Any, Any], Any]) -> UserTask:
    """A task of this model on ROWS, which evaluates on them, too."""

    class Task:
        def data(self) -> tuple[Any, Any]:
            return ROWS, ROWS

        def model(self) -> Any:
            return model()

        def losses(self, outputs: Any, labels: Any) -> Any:
            return losses(outputs, labels)

    return make_task("task.py:Task", Task)


def whole_steps() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of each step."""
    for step in range(STEPS):
        rows = slice(step * SIZE, (step + 1) * SIZE)
        yield ROWS[0][rows], ROWS[1][rows]


def batches(shards: int = 0, lr: float = LR) -> list[Batch]:
    """The steps of one rank, whole or in shards."""
    made, order = [], np.arange(SIZE)
    for step, arrays in enumerate(whole_steps()):
        cut = sharding.Cut.of(0, 1, shards)
        parts = [
            Batch(tuple(array[rows] for array in arrays), weights, lr, step, rows, part)
            for part, (rows, weights) in enumerate(sharding.slices_of_step(order, 0, SIZE, "exact", cut))
        ]
        made.append(Batch((), np.ones(0), lr, step, order, shards=tuple(parts)) if shards else parts[0])
    return made


def assert_close(weights: Weights, expected: Weights, tolerance: float = 2e-5) -> None:
    """All of the expected arrays, up to rounding."""
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def check(
    framework: str,
    model: Callable[[], Any],
    losses: Callable[[Any, Any], Any],
    reference: Callable[[Weights, dict[str, Any]], Weights],
    tolerance: float = 2e-5,
    evaluates: bool = True,
    resumes: bool = True,
    **options: Any,
) -> None:
    """Three steps of a task, with an evaluation and a resume before the last, and those of the framework's own loop.

    reference: the weights after that loop from these weights on, with these options.
    """
    options = {"lr": LR, "weight_decay": 0.0, **options}
    trained = learner(framework, made(model, losses), **options)
    expected = reference(trained.weights(), options)
    *early, last = batches(options.get("shards", 0))
    for batch in early:
        trained.train_step(batch)
        if evaluates:
            trained.eval_step(ROWS)
    if resumes:
        before, trained = trained, learner(framework, made(model, losses), **options)
        trained.load(before.weights())
        trained.load_optimizer_state(before.optimizer_state())
    trained.train_step(last)
    assert_close(trained.weights(), expected, tolerance)
