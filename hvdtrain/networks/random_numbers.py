"""What networks draw with NumPy, so that it is identical in every framework, on every rank and machine.

Initial weights are a function of the seed. Dropout's masks are a function of (seed, step, row), so that they are the
same for any number of ranks: each 64-bit output of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom
Number Generators, 2014) has four numbers of 16 bits, so a rate is rounded to a multiple of 2^-16.
"""

from __future__ import annotations

import math

import numpy as np

from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.layers import Dropout

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIXERS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
LAST_SHIFT = np.uint64(31)
"""SplitMix64's constants."""
PER_WORD = 4
"""Numbers of 16 bits in an output."""


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


def draw_masks(network: ShapedNetwork, seed: int, step: int, rows: np.ndarray) -> list[np.ndarray]:
    """What each layer with dropout multiplies its input with, in the order of the layers: float32 (n, *layer.shape).

    The values are 0, or 1 / (1 - rate). rows: int64 (n,), the rows' numbers in the training data.
    """
    return [_mask(layer, number, seed, step, rows) for number, layer in enumerate(network.dropouts)]


def _mask(layer: Dropout, number: int, seed: int, step: int, rows: np.ndarray) -> np.ndarray:
    count = math.prod(layer.shape)
    with np.errstate(over="ignore"):  # sums and products are modulo 2^64
        key = _mix(_mix(_mix(np.uint64(seed)) + np.uint64(step)) + np.uint64(number))
        of_rows = _mix(key + rows.astype(np.uint64))
        words = _mix(of_rows[:, np.newaxis] + GAMMA * np.arange(-(-count // PER_WORD), dtype=np.uint64))
    numbers = words.view(np.uint16)[:, :count]
    kept = numbers >= round(layer.rate * (1 << 16))
    return (kept * np.float32(1 / (1 - layer.rate))).reshape(len(rows), *layer.shape)


def _mix(value: np.ndarray | np.uint64) -> np.ndarray:
    """SplitMix64's output for the state `value + GAMMA`."""
    mixed = np.asarray(value, np.uint64) + GAMMA
    for shift, factor in MIXERS:
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed ^ (mixed >> LAST_SHIFT)
