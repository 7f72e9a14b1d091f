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
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.networks.layers import (
    CLASSES,
    LARGEST,
    Activation,
    AnyLayer,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Layer,
    Named,
    Positive,
    Residual,
    Shape,
    WindowLayer,
    text,
)

Weights = dict[str, np.ndarray]
"""Parameters by canonical name (<layer>.weight, <layer>.bias) and running statistics of batch normalization
(<layer>.running_mean, <layer>.running_var), float32, in canonical layout."""

STATISTICS = (".running_mean", ".running_var")
"""How the names of running statistics end."""
NAME = r"[A-Za-z]\w{0,63}"
"""What all frameworks accept as the name of a layer."""


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chain of layers from images to one logit for each class, or to one number.

    input_shape: the only shape of images, (channels, height, width), that it takes; None for any that fits the layers.
    `record.from_record` checks the values of layers.
    """

    layers: tuple[AnyLayer, ...]
    input_shape: tuple[Positive, Positive, Positive] | None = None

    def for_data(self, input_shape: Shape, classes: int, model: str) -> ShapedNetwork:
        """This network for images of `input_shape` and that many classes; 0 for a number that it predicts.

        model: names the network in messages. Raises UserError, with both shapes, if it does not fit the data.
        """
        if self.input_shape and input_shape != self.input_shape:
            raise UserError(
                f"--model {model}: takes images of {text(self.input_shape)}, but the data's are {text(input_shape)}",
                "choose another network, such as --model mlp, or resize the images",
            )
        outputs = classes or 1
        layers, output = _Shaping(model, outputs).layers(self.layers, input_shape)
        if output != (outputs,):
            needed = f"has {classes} classes" if classes else "has a number to predict for each row"
            raise UserError(
                f"--model {model}: its output is {text(output)}, but the data {needed}",
                'end with a dense layer of "classes" outputs',
            )
        return ShapedNetwork(self, input_shape, classes, layers)


@dataclass(frozen=True)
class ShapedNetwork:
    """A network for images of `input_shape`, whose layers have names, and the shapes of their inputs."""

    network: Network
    input_shape: Shape
    classes: int
    """0 for a network whose output is a number to predict."""
    layers: tuple[Layer, ...]

    @property
    def is_regression(self) -> bool:
        """Whether its loss is the squared error of its only output, and not the cross entropy of logits."""
        return not self.classes

    @property
    def outputs(self) -> int:
        return self.classes or 1

    def walk(self) -> Iterator[Layer]:
        """All layers, with those of residual branches; a body before its shortcut."""
        return _walk(self.layers)

    def parameters(self) -> Iterator[tuple[str, Shape]]:
        """Canonical names and shapes of what training updates by gradients, in the order of the layers."""
        for layer in self.walk():
            yield from layer.parameters().items()

    def statistics(self) -> Iterator[tuple[str, Shape]]:
        """Canonical names and shapes of the running statistics, in the order of the layers."""
        for layer in self.batch_norms:
            for ending in STATISTICS:
                yield layer.name + ending, layer.shape[:1]

    @functools.cached_property
    def batch_norms(self) -> tuple[BatchNorm, ...]:
        return tuple(layer for layer in self.walk() if isinstance(layer, BatchNorm))

    @functools.cached_property
    def dropouts(self) -> tuple[Dropout, ...]:
        """The layers with dropout; one with rate 0 does nothing, and is left out."""
        return tuple(layer for layer in self.walk() if isinstance(layer, Dropout) and layer.rate)

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
        height = width = 0
        for layer in reversed(self.layers):
            size, step, padding = layer.window if isinstance(layer, WindowLayer) else (0, 0, 0)
            if size and not padding:
                height, width = ((n - 1) * step + size for n in (height, width))
            elif len(layer.shape) == 3 and not isinstance(layer, Activation):
                _, height, width = layer.shape
        return height, width

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for _, shape in self.parameters())

    @property
    def training_flops(self) -> int:
        """Floating-point operations of forward and backward for one image: those of convolutions and dense layers.

        A multiplication and an addition count as two. Backward takes twice as many as forward: one product for the
        gradient of the weights and one for that of the inputs, which the first layer does not need. The "model FLOPs
        utilization" of Chowdhery et al. (PaLM, 2022, appendix B) counts in this way. Biases, activations,
        normalization, pooling, loss and update are not counted.
        """
        products = (
            math.prod(layer.weight) * math.prod(layer.output[1:])
            for layer in self.walk()
            if isinstance(layer, Conv | Dense)
        )
        first, *others = (2 * number for number in products)
        return 2 * first + 3 * sum(others)


def check_weights(weights: Weights, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise ValueError unless the weights have these names and shapes."""
    if weights.keys() != shapes.keys():
        raise ValueError(f"the parameters are {sorted(weights)}, but the network has {sorted(shapes)}")
    for name, shape in shapes.items():
        if weights[name].shape != tuple(shape):
            raise ValueError(f"{name} has shape {weights[name].shape}, but the network needs {tuple(shape)}")


def changed_names(before: Weights, after: Weights) -> set[str]:
    """The names of arrays that are not the same, bit for bit."""
    same = (name for name, array in before.items() if name in after and array.tobytes() == after[name].tobytes())
    return (before.keys() | after.keys()) - set(same)


def _walk(layers: Iterable[Layer]) -> Iterator[Layer]:
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _walk((*layer.body, *layer.shortcut))
        yield layer


def _chains(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, ...]]:
    """The layers, and those of each residual branch."""
    yield layers
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _chains(layer.body)
            yield from _chains(layer.shortcut)


class _Shaping:
    """Gives the layers of one network names, inputs and shapes, in their order.

    model: names the network in messages. classes: what CLASSES stands for.
    """

    def __init__(self, model: str, classes: int) -> None:
        self._model, self._classes = model, classes
        self._numbers: Counter[str] = Counter()
        self._taken: set[str] = set()

    def layers(self, layers: Iterable[Layer], shape: Shape, within: str = "") -> tuple[tuple[Layer, ...], Shape]:
        """The layers with all that follows from `shape`, that of their input, and the shape of their output.

        within: where they are, for messages. Raises UserError for a layer that cannot have such an input.
        """
        shaped = []
        for number, layer in enumerate(layers, 1):
            shaped.append(self._shaped(layer, shape, f"{within}layer {number}"))
            shape = shaped[-1].output
        return tuple(shaped), shape

    def _shaped(self, layer: Layer, shape: Shape, where: str) -> Layer:
        layer = msgspec.structs.replace(layer, shape=shape)
        if problem := layer.problem():
            raise self._error(where, layer, problem)
        if isinstance(layer, Residual):
            layer = self._residual(layer, where)
        if isinstance(layer, Dense) and layer.outputs == CLASSES:
            layer = msgspec.structs.replace(layer, outputs=self._classes)
        if isinstance(layer, Named):
            layer = msgspec.structs.replace(layer, name=self._name(layer, where))
        if max(map(math.prod, (layer.output, *layer.parameters().values()))) >= LARGEST:
            raise self._error(where, layer, f"makes {text(layer.output)} of {text(shape)}, which is too large")
        return layer

    def _residual(self, layer: Residual, where: str) -> Residual:
        body, end = self.layers(layer.body, layer.shape, f"{where} (residual), body, ")
        shortcut, other = self.layers(layer.shortcut, layer.shape, f"{where} (residual), shortcut, ")
        if end != other:
            raise self._error(where, layer, f"its body makes {text(end)} and its shortcut {text(other)}")
        return msgspec.structs.replace(layer, body=body, shortcut=shortcut)

    def _name(self, layer: Named, where: str) -> str:
        """The name that the layer was given, or that of its kind and number."""
        self._numbers[layer.prefix] += 1
        name = layer.name or f"{layer.prefix}{self._numbers[layer.prefix]}"
        if not re.fullmatch(NAME, name, re.ASCII):
            raise self._error(where, layer, f"the name {name!r:.80} must be a letter, then letters, digits and _")
        if name in self._taken:
            raise self._error(where, layer, f"the name {name} is taken by another layer")
        self._taken.add(name)
        return name

    def _error(self, where: str, layer: Layer, problem: str) -> UserError:
        return UserError(f"--model {self._model}: {where} ({layer.kind}): {problem}", "correct the network")
