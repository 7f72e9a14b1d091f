"""A learner that has another state for a while: the moving average of its weights (`--ema`), or what a trial leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hvdtrain.interfaces.learner import Learner, OptimizerState
from hvdtrain.networks.description import Weights


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
    averages = learner.averages()
    if not averages:
        yield
        return
    with restoring(learner) as weights:
        learner.load(weights | averages)
        yield


def _copied(arrays: Weights) -> Weights:
    return {name: array.copy() for name, array in arrays.items()}
