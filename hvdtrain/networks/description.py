"""Networks as data: layers and the shapes of their parameters.

Each framework builds its network from the same `Network`. The canonical layout of weights is channel-first: kernels are
(out, in, height, width), dense weights (out, in), and images are flattened in the order channel, height, width. A
framework with another layout converts weights when they are loaded and saved.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

Weights = dict[str, np.ndarray]
"""Parameters by canonical name (<layer>.weight, <layer>.bias), float32, in canonical layout."""


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
    """Pooling over windows of (size, size) that do not overlap; an incomplete window at the border is dropped."""

    kind: Literal["average", "max"]
    size: int


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""


@dataclass(frozen=True)
class Flatten:
    """(n, channels, height, width) -> (n, channels * height * width)."""


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

    def check(self, weights: Weights) -> None:
        """Raise ValueError unless `weights` are this network's parameters, by names and shapes."""
        expected = dict(self.parameters())
        if set(weights) != set(expected):
            raise ValueError(f"the parameters are {sorted(weights)}, but the network has {sorted(expected)}")
        for name, shape in expected.items():
            if weights[name].shape != shape:
                raise ValueError(f"{name} has shape {weights[name].shape}, but the network needs {shape}")

    @property
    def flattening(self) -> tuple[str, tuple[int, int, int]]:
        """The weight that is multiplied with flattened images, and their shape before flattening, without n.

        Raises ValueError if no dense layer follows a Flatten.
        """
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

    @functools.cached_property
    def used_pixels(self) -> tuple[int, int]:
        """Height and width of the part of an image, from its first row and column on, that the logits depend on.

        A pool drops an incomplete window at the border. What would be computed for it, from the images on, changes no
        logit, and its gradients are zero. Networks crop the images instead: the book's LeNet uses 26 of 28 rows, which
        saves a fifth of its products. Raises ValueError as `flattening` does.
        """
        _, (_, height, width) = self.flattening
        spatial = itertools.takewhile(lambda layer: not isinstance(layer, Flatten), self.layers)
        for layer in reversed(list(spatial)):
            match layer:
                case Conv():
                    height, width = height + layer.kernel - 1, width + layer.kernel - 1
                case Pool():
                    height, width = height * layer.size, width * layer.size
        return height, width

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for _, shape in self.parameters())
