"""The built-in networks as data: layers, shapes, and first weights drawn in NumPy.

Each framework builds its network from the same `Network`, and starts from the same arrays. The canonical layout
of a weight is channel-first: kernels are (out, in, height, width), dense weights (out, in), and images are
flattened in the order channel, height, width. A framework that keeps its weights otherwise converts at its edge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Conv:
    """A convolution without padding, stride 1, with a bias."""

    name: str
    inputs: int
    outputs: int
    kernel: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.outputs, self.inputs, self.kernel, self.kernel)


@dataclass(frozen=True)
class Dense:
    """A dense layer with a bias."""

    name: str
    inputs: int
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.outputs, self.inputs)


@dataclass(frozen=True)
class Pool:
    """Pooling over windows that do not overlap; what is left at the border is dropped."""

    kind: Literal["average", "max"]
    size: int


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""


@dataclass(frozen=True)
class Flatten:
    """(n, channels, height, width) -> (n, channels * height * width), channel first."""


Layer = Conv | Dense | Pool | Relu | Flatten


@dataclass(frozen=True)
class Network:
    """A chain of layers from images of `input_shape` (channels, height, width) to `classes` logits."""

    input_shape: tuple[int, int, int]
    classes: int
    layers: tuple[Layer, ...]

    def parameters(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Canonical names and shapes, in the order of the layers."""
        for layer in self.layers:
            if isinstance(layer, Conv | Dense):
                yield f"{layer.name}.weight", layer.shape
                yield f"{layer.name}.bias", (layer.outputs,)

    @property
    def flattening(self) -> tuple[str, tuple[int, int, int]]:
        """The weight that meets flattened images, and their shape (channels, height, width) before that."""
        channels, height, width = self.input_shape
        for layer, following in itertools.pairwise(self.layers):
            match layer:
                case Conv():
                    channels, height, width = layer.outputs, height - layer.kernel + 1, width - layer.kernel + 1
                case Pool():
                    height, width = height // layer.size, width // layer.size
                case Flatten() if isinstance(following, Dense):
                    return f"{following.name}.weight", (channels, height, width)
        raise ValueError("no dense layer follows a Flatten")

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for _, shape in self.parameters())


NETWORKS: dict[str, Network] = {
    # The LeNet of Dive into Deep Learning, "Multi-GPU Computation" (https://d2l.ai): 129,068 parameters.
    "lenet": Network(
        (1, 28, 28),
        10,
        (
            Conv("conv1", 1, 20, 3),
            Relu(),
            Pool("average", 2),
            Conv("conv2", 20, 50, 5),
            Relu(),
            Pool("average", 2),
            Flatten(),
            Dense("dense1", 800, 128),
            Relu(),
            Dense("dense2", 128, 10),
        ),
    ),
    # The network of PyTorch's CIFAR-10 tutorial: LeCun's LeNet-5 for three channels, 62,006 parameters.
    "cifar_lenet": Network(
        (3, 32, 32),
        10,
        (
            Conv("conv1", 3, 6, 5),
            Relu(),
            Pool("max", 2),
            Conv("conv2", 6, 16, 5),
            Relu(),
            Pool("max", 2),
            Flatten(),
            Dense("dense1", 400, 120),
            Relu(),
            Dense("dense2", 120, 84),
            Relu(),
            Dense("dense3", 84, 10),
        ),
    ),
}


def initial_weights(network: Network, init: str, seed: int) -> Weights:
    """First weights, float32, in canonical names and layout; the same for every framework, rank and machine.

    `book`: N(0, 0.01^2), as in Dive into Deep Learning. `xavier`: uniform in +-sqrt(6 / (fan_in + fan_out))
    (Glorot and Bengio, 2010). Biases are zero in both.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 0]))
    weights = {}
    for name, shape in network.parameters():
        if name.endswith(".bias"):
            values = np.zeros(shape)
        elif init == "book":
            values = generator.normal(0.0, 0.01, shape)
        else:
            field = math.prod(shape[2:])
            limit = math.sqrt(6.0 / ((shape[0] + shape[1]) * field))
            values = generator.uniform(-limit, limit, shape)
        weights[name] = values.astype(np.float32)
    return weights
