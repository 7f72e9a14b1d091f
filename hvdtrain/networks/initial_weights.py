"""Initial weights, drawn with NumPy: identical in every framework, on every rank and machine."""

from __future__ import annotations

import math

import numpy as np

from hvdtrain.networks.description import ShapedNetwork, Weights


def initial_weights(network: ShapedNetwork, init: str, seed: int) -> Weights:
    """Parameters and running statistics before the first step.

    init: `book` draws from N(0, 0.01^2), as Dive into Deep Learning does; `xavier` draws uniformly from
    +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010); `he` draws from N(0, 2 / fan_in) (He et al., Delving Deep
    into Rectifiers, 2015). In all of them biases are zero, and the weights of batch normalization those of its layer.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 0]))
    constants = {f"{layer.name}.weight": layer.initial for layer in network.batch_norms}
    weights = {}
    for name, shape in (*network.parameters(), *network.statistics()):
        if len(shape) > 1:
            values = _draw(generator, init, shape)
        else:
            values = np.full(shape, constants.get(name, 1.0 if name.endswith(".running_var") else 0.0))
        weights[name] = values.astype(np.float32)
    return weights


def _draw(generator: np.random.Generator, init: str, shape: tuple[int, ...]) -> np.ndarray:
    """The weight of a convolution (out, in / groups, height, width) or dense layer (out, in)."""
    receptive_field = math.prod(shape[2:])
    if init == "book":
        return generator.normal(0.0, 0.01, shape)
    if init == "he":
        return generator.normal(0.0, math.sqrt(2.0 / (shape[1] * receptive_field)), shape)
    limit = math.sqrt(6.0 / ((shape[0] + shape[1]) * receptive_field))
    return generator.uniform(-limit, limit, shape)
