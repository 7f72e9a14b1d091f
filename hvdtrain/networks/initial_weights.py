"""Initial weights, drawn with NumPy: identical in every framework, on every rank and machine."""

from __future__ import annotations

import math

import numpy as np

from hvdtrain.networks.description import Network, Weights


def initial_weights(network: Network, init: str, seed: int) -> Weights:
    """Weights before the first step.

    init: `book` draws from N(0, 0.01^2), as Dive into Deep Learning does; `xavier` draws uniformly from
    +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010). Biases are zero in both.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 0]))
    weights = {}
    for name, shape in network.parameters():
        if name.endswith(".bias"):
            values = np.zeros(shape)
        elif init == "book":
            values = generator.normal(0.0, 0.01, shape)
        else:
            receptive_field = math.prod(shape[2:])
            limit = math.sqrt(6.0 / ((shape[0] + shape[1]) * receptive_field))
            values = generator.uniform(-limit, limit, shape)
        weights[name] = values.astype(np.float32)
    return weights
