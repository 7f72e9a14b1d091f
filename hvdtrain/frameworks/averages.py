"""The moving average of weights by --ema: by how much an update moves it."""

from __future__ import annotations


def share_of_weights(decay: float, step: int) -> float:
    """The share of the present weights in the average after the step with this number, counted from 0.

    The average is decay * average + (1 - decay) * weights, as in Polyak averaging. As in TensorFlow's
    ExponentialMovingAverage, the decay is at most (1 + step) / (10 + step), so that a short run's average does not stay
    near its first weights.
    """
    return 1 - min(decay, (1 + step) / (10 + step))
