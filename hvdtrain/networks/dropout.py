"""Dropout's random numbers: a function of (seed, step, row), so that they are the same for any number of ranks.

They are drawn here for all frameworks. Each 64-bit output of SplitMix64 (Steele, Lea and Flood, Fast Splittable
Pseudorandom Number Generators, 2014) has four numbers of 16 bits, so a rate is rounded to a multiple of 2^-16.
"""

from __future__ import annotations

import math

import numpy as np

from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.networks.layers import Dropout

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIXERS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
LAST_SHIFT = np.uint64(31)
"""SplitMix64's constants."""
PER_WORD = 4
"""Numbers of 16 bits in an output."""


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
