"""Networks as data: layers, and the shapes of their parameters on given data.

A `Network` is a list of layers. On data with known shapes and classes it is a `ShapedNetwork`, from which each
framework builds its own. The canonical layout of weights is channel-first: kernels are (out, in / groups, height,
width), dense weights (out, in), and images are flattened in the order channel, height, width. A framework with another
layout converts weights when they are loaded and saved.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.networks.layers import (
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Gelu,
    Layer,
    LeakyRelu,
    Pool,
    Relu,
    Residual,
    Shape,
)
from hvdtrain.networks.shapes import Shaping, output_shape, text

Weights = dict[str, np.ndarray]
"""Parameters by canonical name (<layer>.weight, <layer>.bias) and running statistics of batch normalization
(<layer>.running_mean, <layer>.running_var), float32, in canonical layout."""

STATISTICS = (".running_mean", ".running_var")
"""How the names of running statistics end."""


@dataclass(frozen=True)
class Network:
    """A chain of layers from images to one logit for each class.

    input_shape: the only shape of images, (channels, height, width), that it takes; None for any that fits the layers.
    """

    layers: tuple[Layer, ...]
    input_shape: Shape | None = None

    def for_data(self, input_shape: Shape, classes: int, model: str) -> ShapedNetwork:
        """This network for images of `input_shape` and that many classes.

        model: names the network in messages. Raises UserError, with both shapes, if it does not fit the data.
        """
        if self.input_shape and input_shape != self.input_shape:
            raise UserError(
                f"--model {model}: takes images of {text(self.input_shape)}, but the data's are {text(input_shape)}",
                "choose another network, or resize the images",
            )
        layers, output = Shaping(model, classes).layers(self.layers, input_shape)
        if output != (classes,):
            raise UserError(
                f"--model {model}: its output is {text(output)}, but the data has {classes} classes",
                'end with a dense layer of "classes" outputs',
            )
        return ShapedNetwork(self, input_shape, classes, layers)


@dataclass(frozen=True)
class ShapedNetwork:
    """A network for images of `input_shape`, whose layers have names, inputs and outputs."""

    network: Network
    input_shape: Shape
    classes: int
    layers: tuple[Layer, ...]

    def walk(self) -> Iterator[tuple[Layer, Shape]]:
        """All layers, those of residual branches too, each with the shape of its output; a body before its shortcut."""
        yield from _walk(self.layers, self.input_shape)

    def parameters(self) -> Iterator[tuple[str, Shape]]:
        """Canonical names and shapes of what training updates by gradients, in the order of the layers."""
        for layer, _ in self.walk():
            if isinstance(layer, Conv | Dense):
                yield f"{layer.name}.weight", layer.shape
                if layer.bias:
                    yield f"{layer.name}.bias", layer.shape[:1]
            elif isinstance(layer, BatchNorm):
                yield f"{layer.name}.weight", (layer.inputs,)
                yield f"{layer.name}.bias", (layer.inputs,)

    def statistics(self) -> Iterator[tuple[str, Shape]]:
        """Canonical names and shapes of the running statistics, in the order of the layers."""
        for layer in self.batch_norms:
            for ending in STATISTICS:
                yield layer.name + ending, (layer.inputs,)

    @functools.cached_property
    def batch_norms(self) -> tuple[BatchNorm, ...]:
        """The layers with batch normalization."""
        return tuple(layer for layer, _ in self.walk() if isinstance(layer, BatchNorm))

    @functools.cached_property
    def dropouts(self) -> tuple[Dropout, ...]:
        """The layers with dropout; one with rate 0 does nothing, and is left out."""
        return tuple(layer for layer, _ in self.walk() if isinstance(layer, Dropout) and layer.rate)

    @functools.cached_property
    def flattened(self) -> dict[str, Shape]:
        """The dense layers that directly follow a Flatten, by name, and the shape that is flattened."""
        pairs = itertools.chain(*(itertools.pairwise(chain) for chain in _chains(self.layers)))
        return {
            layer.name: before.shape
            for before, layer in pairs
            if isinstance(before, Flatten) and isinstance(layer, Dense)
        }

    def check(self, weights: Weights) -> None:
        """Raise ValueError unless `weights` are this network's, by names, types and shapes."""
        expected = dict(self.parameters()) | dict(self.statistics())
        check_weights(weights, expected)
        for name, value in weights.items():
            if value.dtype != np.float32:
                raise ValueError(f"{name} is {value.dtype}, not float32")

    @functools.cached_property
    def used_pixels(self) -> tuple[int, int]:
        """Height and width of the part of an image, from its first row and column on, that the logits depend on.

        A convolution or pool without padding drops an incomplete window at the border. What would be computed for it,
        from the images on, changes no logit, and its gradients are zero. Networks crop the images instead: the book's
        LeNet uses 26 of 28 rows, which saves a fifth of its products.
        """
        if any(isinstance(layer, Residual) for layer in self.layers):
            return self.input_shape[1], self.input_shape[2]
        inputs = [self.input_shape, *(shape for _, shape in self.walk())]
        height = width = 0
        for layer, shape in reversed(list(zip(self.layers, inputs, strict=False))):
            match layer:
                case Conv(padding=0):
                    height, width = ((n - 1) * layer.stride + layer.kernel for n in (height, width))
                case Pool(padding=0):
                    height, width = ((n - 1) * layer.step + layer.size for n in (height, width))
                case Relu() | LeakyRelu() | Gelu():
                    pass  # a pixel of the output depends on that of the input only
                case _ if len(shape) == 3:
                    _, height, width = shape
        return height, width

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for _, shape in self.parameters())


def check_weights(weights: Weights, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise ValueError unless the weights have these names and shapes."""
    if weights.keys() != shapes.keys():
        raise ValueError(f"the parameters are {sorted(weights)}, but the network has {sorted(shapes)}")
    for name, shape in shapes.items():
        if weights[name].shape != tuple(shape):
            raise ValueError(f"{name} has shape {weights[name].shape}, but the network needs {tuple(shape)}")


def _walk(layers: Iterable[Layer], shape: Shape) -> Iterator[tuple[Layer, Shape]]:
    """See `ShapedNetwork.walk`. shape: of the input of the first layer."""
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _walk(layer.body, shape)
            yield from _walk(layer.shortcut, shape)
        shape = output_shape(layer, shape)
        yield layer, shape


def _chains(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, ...]]:
    """The layers, and those of each residual branch."""
    yield layers
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _chains(layer.body)
            yield from _chains(layer.shortcut)
