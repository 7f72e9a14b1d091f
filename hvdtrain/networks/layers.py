"""The layers of a network as data: their values, the shapes that they make, and their parameters.

Sizes are numbers of pixels, `rate` and `slope` are fractions. A layer without a name gets one of its kind and number,
`conv1`, `conv2` and so on, by which its parameters are called in every framework and checkpoint. What a layer computes
is written in `networks.onnx_graph`, and in each framework's `network`.
"""

from __future__ import annotations

import math
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


class Layer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """What all layers have. shape: of the input, which a description leaves to `Network.for_data`."""

    axes: ClassVar[int | None] = None
    """Of its input: 3 for images, 1 for features, None for either."""
    shape: Annotated[Shape, msgspec.Meta(max_length=0)] = ()

    @property
    def kind(self) -> str:
        """Its type in records and messages."""
        return str(self.__struct_config__.tag)

    @property
    def inputs(self) -> int:
        """Channels or features of the input."""
        return self.shape[0]

    @property
    def output(self) -> Shape:
        return self.shape

    def problem(self) -> str:
        """Why the layer cannot have its input; empty if it can."""
        if self.axes == 3 and len(self.shape) != 3:
            return f"it takes images (channels x height x width), but gets {text(self.shape)} features"
        if self.axes == 1 and len(self.shape) != 1:
            images = text(self.shape)
            return f"it takes features, but gets images of {images}: put a flatten or global_average_pool before it"
        return ""

    def parameters(self) -> dict[str, Shape]:
        """Canonical names and shapes of what training updates by gradients."""
        return {}


class WindowLayer(Layer, frozen=True):
    """A layer that computes each pixel from a square window of its input; an incomplete window is dropped."""

    axes = 3

    @property
    def window(self) -> tuple[int, int, int]:
        """Width and height of a window, the pixels from one to the next, and those beyond each side of the image."""
        raise NotImplementedError

    def problem(self) -> str:
        if problem := super().problem():
            return problem
        size, _, padding = self.window
        if min(self.shape[1:]) + 2 * padding < size:
            return f"its windows of {size}x{size} do not fit in images of {text(self.shape)} with padding {padding}"
        return ""

    @property
    def output(self) -> Shape:
        size, step, padding = self.window
        return (self.shape[0], *((length + 2 * padding - size) // step + 1 for length in self.shape[1:]))


class Activation(Layer, frozen=True):
    """A layer that computes each value from the value at its place."""


class Conv(WindowLayer, frozen=True, tag="conv"):
    """A two-dimensional convolution (a cross-correlation, as in all frameworks) with a square kernel.

    padding: rows and columns of zeros on each side. groups: parts of the channels that are convolved separately; as
    many as there are input channels is a depthwise convolution.
    """

    prefix: ClassVar[str] = "conv"
    """How its name begins if it is given none."""
    outputs: Positive
    kernel: Positive
    stride: Positive = 1
    padding: Count = 0
    groups: Positive = 1
    bias: bool = True
    name: str = ""

    @property
    def window(self) -> tuple[int, int, int]:
        return self.kernel, self.stride, self.padding

    @property
    def weight(self) -> Shape:
        """The weight's shape."""
        return (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)

    @property
    def output(self) -> Shape:
        return (self.outputs, *super().output[1:])

    def problem(self) -> str:
        if problem := super().problem():
            return problem
        if self.inputs % self.groups or self.outputs % self.groups:
            return f"{self.groups} groups divide neither evenly: {self.inputs} inputs, {self.outputs} outputs"
        return ""

    def parameters(self) -> dict[str, Shape]:
        return _weight_and_bias(self)


class Dense(Layer, frozen=True, tag="dense"):
    """A dense layer on features. `Network.for_data` sets `outputs` of "classes"."""

    prefix: ClassVar[str] = "dense"
    axes = 1
    outputs: Positive | Literal["classes"]
    bias: bool = True
    name: str = ""

    @property
    def weight(self) -> Shape:
        """The weight's shape."""
        return (int(self.outputs), self.inputs)

    @property
    def output(self) -> Shape:
        return self.weight[:1]

    def parameters(self) -> dict[str, Shape]:
        return _weight_and_bias(self)


def _weight_and_bias(layer: Conv | Dense) -> dict[str, Shape]:
    bias = {f"{layer.name}.bias": layer.weight[:1]} if layer.bias else {}
    return {f"{layer.name}.weight": layer.weight, **bias}


class BatchNorm(Layer, frozen=True, tag="batch_norm"):
    """Batch normalization of each channel or feature (Ioffe and Szegedy, 2015), with a weight and a bias.

    Training normalizes by the mean and variance of the batch (--batch-norm says of which rows), evaluation by the
    running ones. momentum: the share of a batch in the running statistics, whose variance is the unbiased one.
    epsilon: added to the variance. initial: the weight before the first step; with 0 at the end of its body, a residual
    layer begins as its shortcut (Goyal et al., 2017).
    """

    prefix: ClassVar[str] = "norm"
    momentum: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    epsilon: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-5
    initial: Finite = 1.0
    name: str = ""

    def parameters(self) -> dict[str, Shape]:
        return {f"{self.name}.{kind}": self.shape[:1] for kind in ("weight", "bias")}


class Dropout(Layer, frozen=True, tag="dropout"):
    """In training, sets this share of the values to 0 and divides the others by 1 - rate (Srivastava et al., 2014)."""

    prefix: ClassVar[str] = "dropout"
    rate: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    name: str = ""


Named = Conv | Dense | BatchNorm | Dropout


class Pool(WindowLayer, frozen=True, tag="pool"):
    """The average or maximum of square windows; by default they do not overlap.

    stride: 0 for `size`. padding: rows and columns on each side, which count as zeros in an average and never are a
    maximum.
    """

    reduction: Literal["average", "max"]
    size: Positive
    stride: Count = 0
    padding: Count = 0

    @property
    def step(self) -> int:
        """Pixels between two windows."""
        return self.stride or self.size

    @property
    def window(self) -> tuple[int, int, int]:
        return self.size, self.step, self.padding

    def problem(self) -> str:
        if self.padding * 2 > self.size:
            return f"padding {self.padding} is more than half of size {self.size}"
        return super().problem()


class GlobalAveragePool(Layer, frozen=True, tag="global_average_pool"):
    """(channels, height, width) -> (channels,)."""

    axes = 3

    @property
    def output(self) -> Shape:
        return self.shape[:1]


class Relu(Activation, frozen=True, tag="relu"):
    """max(x, 0)."""


class LeakyRelu(Activation, frozen=True, tag="leaky_relu"):
    """x where it is positive, else slope * x."""

    slope: Finite = 0.01


class Gelu(Activation, frozen=True, tag="gelu"):
    """x * Phi(x), with the standard normal distribution's Phi (Hendrycks and Gimpel, 2016); not the approximation."""


class Flatten(Layer, frozen=True, tag="flatten"):
    """(channels, height, width) -> (channels * height * width,)."""

    axes = 3

    @property
    def output(self) -> Shape:
        return (math.prod(self.shape),)


class Residual(Layer, frozen=True, tag="residual"):
    """body(x) + shortcut(x); an empty shortcut is x itself."""

    body: tuple[AnyLayer, ...]
    shortcut: tuple[AnyLayer, ...] = ()

    @property
    def output(self) -> Shape:
        return self.body[-1].output if self.body else self.shape


AnyLayer = Conv | Dense | BatchNorm | Dropout | Pool | GlobalAveragePool | Relu | LeakyRelu | Gelu | Flatten | Residual
"""All layers that there are."""
