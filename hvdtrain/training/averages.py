"""Evaluating the moving average of the weights instead of the weights, by --ema."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hvdtrain.interfaces.learner import Learner


@contextlib.contextmanager
def averaged(learner: Learner) -> Iterator[None]:
    """Let the learner have the averages of its weights, if there are some, in a `with` block; then the weights again.

    Running statistics stay those of training.
    """
    averages = learner.averages()
    if not averages:
        yield
        return
    trained = {name: array.copy() for name, array in learner.weights().items()}
    learner.load(trained | averages)
    try:
        yield
    finally:
        learner.load(trained)
