"""Averages of weights: by how much an update moves that of --ema, and those that an optimizer has itself."""

from __future__ import annotations

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError


def share_of_weights(decay: float, step: int) -> float:
    """The share of the present weights in the average after the step with this number, counted from 0.

    The average is decay * average + (1 - decay) * weights, as in Polyak averaging. As in TensorFlow's
    ExponentialMovingAverage, the decay is at most (1 + step) / (10 + step), so that a short run's average does not stay
    near its first weights.
    """
    return 1 - min(decay, (1 + step) / (10 + step))


def check_own_averages(config: Config) -> None:
    """Raise UserError for options that do not go with an optimizer that averages the weights itself."""
    for option in ["--ema"] * bool(config.ema) + ["--sync-every"] * (config.sync_every > 1):
        raise UserError(f"{option}: the optimizer averages the weights itself, for evaluations", "leave it out")
