"""Networks of all kinds of layers, drawn at random, and weights for them."""

from __future__ import annotations

import math
import random

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.networks.description import Network, ShapedNetwork, Weights
from hvdtrain.networks.layers import (
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Gelu,
    GlobalAveragePool,
    Layer,
    LeakyRelu,
    Pool,
    Relu,
    Residual,
)


def random_network(seed: int, classes: int = 7) -> ShapedNetwork:
    """A network for small images, which need not be square."""
    draw = random.Random(seed)
    shape = (draw.choice([1, 3, 4]), draw.randint(9, 16), draw.randint(9, 16))
    head = draw.choice([(Flatten(),), (GlobalAveragePool(),)])
    dense = (Dense(draw.randint(2, 9), bias=draw.random() < 0.5), BatchNorm(epsilon=1e-3), _activation(draw))
    layers: tuple[Layer, ...] = ()
    while len(layers) < 6:
        grown = (*layers, _image_layer(draw))
        try:
            Network((*grown, Flatten(), Dense("classes"))).for_data(shape, classes, "random")
        except UserError:  # it does not fit
            continue
        layers = grown
    return Network((*layers, *head, *dense, Dense("classes"), Dropout(0.1))).for_data(shape, classes, "random")


def _image_layer(draw: random.Random) -> Layer:
    def convolution() -> Conv:
        return Conv(
            outputs=4 * draw.randint(1, 2),
            kernel=draw.randint(1, 4),
            stride=draw.randint(1, 2),
            padding=draw.randint(0, 2),
            groups=draw.choice([1, 1, 2, 4]),
            bias=draw.random() < 0.5,
        )

    def residual() -> Residual:
        branches = (Conv(4, 3, padding=1), BatchNorm()), draw.choice([(Conv(4, 1, bias=False),), ()])
        return Residual(*branches)

    def pool() -> Pool:
        size = draw.randint(2, 3)
        return Pool(draw.choice(["average", "max"]), size, draw.randint(0, 2), draw.randint(0, size // 2))

    makers = [convolution, convolution, residual, pool, BatchNorm, lambda: Dropout(0.3), lambda: _activation(draw)]
    return draw.choice(makers)()


def _activation(draw: random.Random) -> Layer:
    return draw.choice([Relu(), LeakyRelu(0.2), Gelu()])


def random_weights(network: ShapedNetwork, seed: int) -> Weights:
    """Of every parameter and running statistic, so that none can be left out unnoticed; signals keep their size."""
    draw = np.random.default_rng(seed)
    weights = {}
    for name, shape in [*network.parameters(), *network.statistics()]:
        if len(shape) > 1:
            value = draw.normal(0, math.sqrt(2 / math.prod(shape[1:])), shape)
        else:
            value = draw.normal(0, 0.3, shape) if name.endswith(("bias", "mean")) else draw.uniform(0.5, 2, shape)
        weights[name] = value.astype(np.float32)
    return weights
