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
