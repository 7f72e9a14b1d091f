"""The layers of a network as data: their values, the shapes that they make, and their parameters.

Sizes are numbers of pixels, `rate` and `slope` are fractions. A layer without a name gets one of its kind and number,
`conv1`, `conv2` and so on, by which its parameters are called in every framework and checkpoint. What a layer computes
is written in `networks.onnx_graph`, and in each framework's `network`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import msgspec

Shape = tuple[int, ...]
"""(channels, height, width) of an image, or (features,), without the number of rows."""

CLASSES: Literal["classes"] = "classes"
"""As `outputs` of a dense layer: the number of the data's classes."""
LARGEST = 1 << 31
"""Number of values in an array of a layer, at most: MXNet counts them in 32 bits."""
Positive = Annotated[int, msgspec.Meta(ge=1, lt=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
Finite = Annotated[float, msgspec.Meta(gt=-1e38, lt=1e38)]


def text(shape: Shape) -> str:
    """A shape as messages have it: 3x32x32."""
    return "x".join(map(str, shape))


class Layer:
    """What all layers have; each is a frozen dataclass in LAYERS."""

    kind: ClassVar[str]
    """Its type in records and messages."""
    prefix: ClassVar[str] = ""
    """How the name of a layer begins that has none; empty for those that get no name."""
    axes: ClassVar[int | None] = None
    """Of its input: 3 for images, 1 for features, None for either."""
    name: str

    def problem(self, shape: Shape) -> str:
        """Why the layer cannot have an input of this shape; empty if it can."""
        if self.axes == 3 and len(shape) != 3:
            return f"it takes images (channels x height x width), but gets {text(shape)} features"
        if self.axes == 1 and len(shape) != 1:
            return (
                f"it takes features, but gets images of {text(shape)}: put a flatten or global_average_pool before it"
            )
        return ""

    def on_input(self, shape: Shape, classes: int, name: str) -> Layer:
        """The layer with all that follows from the shape of its input, the number of classes, and its name."""
        return self

    def output(self, shape: Shape) -> Shape:
        """The shape of the output of a layer that `on_input` returned, for an input of `shape` that it can have."""
        return shape

    def parameters(self) -> dict[str, Shape]:
        """The shapes of what training updates by gradients: of `weight`, and of `bias`."""
        return {}


class WindowLayer(Layer):
    """A layer that computes each pixel from a square window of its input; an incomplete window is dropped."""

    axes = 3
    padding: int

    @property
    def window(self) -> tuple[int, int]:
        """Width and height of a window, and the pixels from one to the next."""
        raise NotImplementedError

    def problem(self, shape: Shape) -> str:
        if problem := super().problem(shape):
            return problem
        size, _ = self.window
        if min(shape[1:]) + 2 * self.padding < size:
            return f"its windows of {size}x{size} do not fit in images of {text(shape)} with padding {self.padding}"
        return ""

    def output(self, shape: Shape) -> Shape:
        size, step = self.window
        return (shape[0], *((length + 2 * self.padding - size) // step + 1 for length in shape[1:]))


class Activation(Layer):
    """A layer that computes each value from the value at its place."""


@dataclass(frozen=True)
class Conv(WindowLayer):
    """A two-dimensional convolution (a cross-correlation, as in all frameworks) with a square kernel.

    padding: rows and columns of zeros on each side. groups: parts of the channels that are convolved separately; as
    many as there are input channels is a depthwise convolution. inputs: set by `Network.for_data`.
    """

    kind = prefix = "conv"
    outputs: Positive
    kernel: Positive
    stride: Positive = 1
    padding: Count = 0
    groups: Positive = 1
    bias: bool = True
    name: str = ""
    inputs: int = 0

    @property
    def shape(self) -> Shape:
        """Of the weight."""
        return (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)

    @property
    def window(self) -> tuple[int, int]:
        return self.kernel, self.stride

    def problem(self, shape: Shape) -> str:
        if problem := super().problem(shape):
            return problem
        if shape[0] % self.groups or self.outputs % self.groups:
            return f"{self.groups} groups divide neither evenly: {shape[0]} inputs, {self.outputs} outputs"
        return ""

    def on_input(self, shape: Shape, classes: int, name: str) -> Conv:
        return dataclasses.replace(self, name=name, inputs=shape[0])

    def output(self, shape: Shape) -> Shape:
        return (self.outputs, *super().output(shape)[1:])

    def parameters(self) -> dict[str, Shape]:
        return {"weight": self.shape, **({"bias": self.shape[:1]} if self.bias else {})}


@dataclass(frozen=True)
class Dense(Layer):
    """A dense layer on features. inputs: set by `Network.for_data`, as are `outputs` of "classes"."""

    kind = prefix = "dense"
    axes = 1
    outputs: Positive | Literal["classes"]
    bias: bool = True
    name: str = ""
    inputs: int = 0

    @property
    def shape(self) -> Shape:
        """Of the weight."""
        return (int(self.outputs), self.inputs)

    def on_input(self, shape: Shape, classes: int, name: str) -> Dense:
        outputs = classes if self.outputs == CLASSES else self.outputs
        return dataclasses.replace(self, name=name, inputs=shape[0], outputs=outputs)

    def output(self, shape: Shape) -> Shape:
        return self.shape[:1]

    def parameters(self) -> dict[str, Shape]:
        return {"weight": self.shape, **({"bias": self.shape[:1]} if self.bias else {})}


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalization of each channel or feature (Ioffe and Szegedy, 2015), with a weight and a bias.

    Training normalizes by the mean and variance of the batch (--batch-norm says of which rows), evaluation by the
    running ones. momentum: the share of a batch in the running statistics, whose variance is the unbiased one.
    epsilon: added to the variance. initial: the weight before the first step; with 0 at the end of its body, a residual
    layer begins as its shortcut (Goyal et al., 2017). inputs: set by `Network.for_data`.
    """

    kind, prefix = "batch_norm", "norm"
    momentum: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    epsilon: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-5
    initial: Finite = 1.0
    name: str = ""
    inputs: int = 0

    def on_input(self, shape: Shape, classes: int, name: str) -> BatchNorm:
        return dataclasses.replace(self, name=name, inputs=shape[0])

    def parameters(self) -> dict[str, Shape]:
        return {"weight": (self.inputs,), "bias": (self.inputs,)}


@dataclass(frozen=True)
class Dropout(Layer):
    """In training, sets this share of the values to 0 and divides the others by 1 - rate (Srivastava et al., 2014).

    name and shape, that of the values: set by `Network.for_data`.
    """

    kind = prefix = "dropout"
    rate: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    name: str = ""
    shape: Shape = ()

    def on_input(self, shape: Shape, classes: int, name: str) -> Dropout:
        return dataclasses.replace(self, name=name, shape=shape)


@dataclass(frozen=True)
class Pool(WindowLayer):
    """The average or maximum of square windows; by default they do not overlap.

    stride: 0 for `size`. padding: rows and columns on each side, which count as zeros in an average and never are a
    maximum.
    """

    kind = "pool"
    reduction: Literal["average", "max"]
    size: Positive
    stride: Count = 0
    padding: Count = 0

    @property
    def step(self) -> int:
        """Pixels between two windows."""
        return self.stride or self.size

    @property
    def window(self) -> tuple[int, int]:
        return self.size, self.step

    def problem(self, shape: Shape) -> str:
        if self.padding * 2 > self.size:
            return f"padding {self.padding} is more than half of size {self.size}"
        return super().problem(shape)


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """(channels, height, width) -> (channels,)."""

    kind = "global_average_pool"
    axes = 3

    def output(self, shape: Shape) -> Shape:
        return shape[:1]


@dataclass(frozen=True)
class Relu(Activation):
    """max(x, 0)."""

    kind = "relu"


@dataclass(frozen=True)
class LeakyRelu(Activation):
    """x where it is positive, else slope * x."""

    kind = "leaky_relu"
    slope: Finite = 0.01


@dataclass(frozen=True)
class Gelu(Activation):
    """x * Phi(x), with the standard normal distribution's Phi (Hendrycks and Gimpel, 2016); not the approximation."""

    kind = "gelu"


@dataclass(frozen=True)
class Flatten(Layer):
    """(channels, height, width) -> (channels * height * width,). shape, the former: set by `Network.for_data`."""

    kind = "flatten"
    axes = 3
    shape: Shape = ()

    def on_input(self, shape: Shape, classes: int, name: str) -> Flatten:
        return dataclasses.replace(self, shape=shape)

    def output(self, shape: Shape) -> Shape:
        return (math.prod(shape),)


@dataclass(frozen=True)
class Residual(Layer):
    """body(x) + shortcut(x); an empty shortcut is x itself."""

    kind = "residual"
    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    def output(self, shape: Shape) -> Shape:
        return functools.reduce(lambda before, layer: layer.output(before), self.body, shape)


LAYERS = (Conv, Dense, BatchNorm, Dropout, Pool, GlobalAveragePool, Relu, LeakyRelu, Gelu, Flatten, Residual)
"""All layers that there are."""
