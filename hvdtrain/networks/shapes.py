"""The shapes of a network's layers on given data, and what does not fit."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable

from hvdtrain.errors import UserError
from hvdtrain.networks.layers import (
    CLASSES,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    LeakyRelu,
    Pool,
    Residual,
    Shape,
)

NAMES = {Conv: "conv", Dense: "dense", BatchNorm: "norm", Dropout: "dropout"}
"""Beginnings of the names of layers that have none."""
NAME = r"[A-Za-z]\w{0,63}"
"""What all frameworks accept as the name of a layer."""
LARGEST = 1 << 31
"""Number of values in an array of a layer, at most: MXNet counts them in 32 bits."""


def text(shape: Shape) -> str:
    """A shape as messages have it: 3x32x32."""
    return "x".join(map(str, shape))


class Shaping:
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
            where = f"{within}layer {number}"
            one, shape = self._shaped(layer, shape, where)
            shaped.append(one)
        return tuple(shaped), shape

    def _shaped(self, layer: Layer, shape: Shape, where: str) -> tuple[Layer, Shape]:
        if not isinstance(layer, Layer):
            raise self._error(where, None, f"{layer!r:.60} is no layer")
        problem = _problem(layer, shape)
        if problem:
            raise self._error(where, layer, problem)
        match layer:
            case Residual():
                layer = self._residual(layer, shape, where)
            case Dense():
                outputs = self._classes if layer.outputs == CLASSES else layer.outputs
                layer = dataclasses.replace(layer, name=self._name(layer, where), inputs=shape[0], outputs=outputs)
            case Conv() | BatchNorm():
                layer = dataclasses.replace(layer, name=self._name(layer, where), inputs=shape[0])
            case Dropout():
                layer = dataclasses.replace(layer, name=self._name(layer, where), shape=shape)
            case Flatten():
                layer = dataclasses.replace(layer, shape=shape)
        output = output_shape(layer, shape)
        weight = math.prod(layer.shape) if isinstance(layer, Conv | Dense) else 0
        if max(math.prod(output), weight) >= LARGEST:
            raise self._error(where, layer, f"makes {text(output)} of {text(shape)}, which is too large")
        return layer, output

    def _residual(self, layer: Residual, shape: Shape, where: str) -> Residual:
        body, ends = self.layers(layer.body, shape, f"{where} (residual), body, ")
        shortcut, beside = self.layers(layer.shortcut, shape, f"{where} (residual), shortcut, ")
        if ends != beside:
            raise self._error(where, layer, f"its body makes {text(ends)} and its shortcut {text(beside)}")
        return Residual(body, shortcut)

    def _name(self, layer: Conv | Dense | BatchNorm | Dropout, where: str) -> str:
        """The layer's own name, or that of its kind and number."""
        kind = NAMES[type(layer)]
        self._numbers[kind] += 1
        name = layer.name or f"{kind}{self._numbers[kind]}"
        if not re.fullmatch(NAME, name, re.ASCII):
            raise self._error(where, layer, f"the name {name!r:.80} must be a letter, then letters, digits and _")
        if name in self._taken:
            raise self._error(where, layer, f"the name {name} is taken by another layer")
        self._taken.add(name)
        return name

    def _error(self, where: str, layer: Layer | None, problem: str) -> UserError:
        kind = f" ({layer.kind})" if layer else ""
        return UserError(f"--model {self._model}: {where}{kind}: {problem}", "correct the network")


def output_shape(layer: Layer, shape: Shape) -> Shape:
    """The shape of the layer's output for an input of `shape` that fits it; `outputs` is a number."""
    match layer:
        case Residual():
            return functools.reduce(lambda before, one: output_shape(one, before), layer.body, shape)
        case Conv():
            return (layer.outputs, *_windows(shape, layer.kernel, layer.stride, layer.padding))
        case Pool():
            return (shape[0], *_windows(shape, layer.size, layer.step, layer.padding))
        case Dense():
            return (int(layer.outputs),)
        case GlobalAveragePool():
            return shape[:1]
        case Flatten():
            return (math.prod(shape),)
    return shape


def _windows(shape: Shape, size: int, stride: int, padding: int) -> Shape:
    """Numbers of windows in height and width."""
    return tuple((length + 2 * padding - size) // stride + 1 for length in shape[1:])


def _problem(layer: Layer, shape: Shape) -> str:
    """Why the layer cannot have an input of this shape; empty if it can."""
    problem = _value_problem(layer)
    if problem:
        return problem
    takes_images = isinstance(layer, Conv | Pool | GlobalAveragePool | Flatten)
    if takes_images and len(shape) != 3:
        return f"it takes images (channels x height x width), but gets {text(shape)} features"
    if isinstance(layer, Dense) and len(shape) != 1:
        return f"it takes features, but gets images of {text(shape)}: put a flatten or global_average_pool before it"
    if isinstance(layer, Conv | Pool):
        size = layer.kernel if isinstance(layer, Conv) else layer.size
        if min(shape[1:]) + 2 * layer.padding < size:
            return f"its windows of {size}x{size} do not fit in images of {text(shape)} with padding {layer.padding}"
    if isinstance(layer, Conv) and (shape[0] % layer.groups or layer.outputs % layer.groups):
        return f"{layer.groups} groups divide neither evenly: {shape[0]} inputs, {layer.outputs} outputs"
    return ""


def _value_problem(layer: Layer) -> str:
    """Which value of the layer itself cannot work; empty if all can."""
    match layer:
        case Conv():
            least = {"outputs": 1, "kernel": 1, "stride": 1, "padding": 0, "groups": 1}
        case Pool():
            least = {"size": 1, "stride": 0, "padding": 0}
            if layer.reduction not in ("average", "max"):
                return f"reduction is {layer.reduction!r}, not average or max"
            if layer.padding * 2 > layer.size:
                return f"padding {layer.padding} is more than half of size {layer.size}"
        case Dense():
            least = {} if layer.outputs == CLASSES else {"outputs": 1}
        case Dropout() if not 0 <= layer.rate < 1:
            return f"rate is {layer.rate}, not at least 0 and below 1"
        case BatchNorm() if not (0 < layer.momentum <= 1 and 0 < layer.epsilon < 1):
            return f"momentum {layer.momentum} must be above 0, at most 1, and epsilon {layer.epsilon} between 0 and 1"
        case BatchNorm() if not math.isfinite(layer.initial):
            return f"initial is {layer.initial}, not a finite number"
        case LeakyRelu() if not math.isfinite(layer.slope):
            return f"slope is {layer.slope}, not a finite number"
        case _:
            least = {}
    for name, minimum in least.items():
        value = getattr(layer, name)
        if not minimum <= value < LARGEST:
            return f"{name} is {value}, not at least {minimum}"
    return ""
