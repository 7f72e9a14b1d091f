"""The layers of a network as data. Shapes come from the training data: see `Network.for_data`.

Sizes are numbers of pixels, `rate` and `slope` are fractions. A layer without a name gets one of its kind and number,
`conv1`, `conv2` and so on, by which its parameters are called in every framework and checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Shape = tuple[int, ...]
"""(channels, height, width) of an image, or (features,), without the number of rows."""

CLASSES: Literal["classes"] = "classes"
"""As `outputs` of a dense layer: the number of the data's classes."""


@dataclass(frozen=True)
class Conv:
    """A two-dimensional convolution (a cross-correlation, as in all frameworks) with a square kernel.

    padding: rows and columns of zeros on each side. groups: parts of the channels that are convolved separately; as
    many as there are input channels is a depthwise convolution. inputs: set by `Network.for_data`.
    """

    kind: ClassVar[str] = "conv"
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    bias: bool = True
    name: str = ""
    inputs: int = 0

    @property
    def shape(self) -> Shape:
        """Of the weight."""
        return (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)


@dataclass(frozen=True)
class Dense:
    """A dense layer on features. inputs: set by `Network.for_data`, as are `outputs` of "classes"."""

    kind: ClassVar[str] = "dense"
    outputs: int | Literal["classes"]
    bias: bool = True
    name: str = ""
    inputs: int = 0

    @property
    def shape(self) -> Shape:
        """Of the weight."""
        return (int(self.outputs), self.inputs)


@dataclass(frozen=True)
class BatchNorm:
    """Batch normalization of each channel or feature (Ioffe and Szegedy, 2015), with a weight and a bias.

    Training normalizes by the mean and variance of the batch (--batch-norm says of which rows), evaluation by the
    running ones. momentum: the share of a batch in the running statistics, whose variance is the unbiased one.
    epsilon: added to the variance. initial: the weight before the first step; with 0 at the end of its body, a residual
    layer begins as its shortcut (Goyal et al., 2017). inputs: set by `Network.for_data`.
    """

    kind: ClassVar[str] = "batch_norm"
    momentum: float = 0.1
    epsilon: float = 1e-5
    initial: float = 1.0
    name: str = ""
    inputs: int = 0


@dataclass(frozen=True)
class Dropout:
    """In training, sets this share of the values to 0 and divides the others by 1 - rate (Srivastava et al., 2014).

    name and shape, that of the values: set by `Network.for_data`.
    """

    kind: ClassVar[str] = "dropout"
    rate: float
    name: str = ""
    shape: Shape = ()


@dataclass(frozen=True)
class Pool:
    """The average or maximum of square windows; by default they do not overlap. An incomplete window is dropped.

    stride: 0 for `size`. padding: rows and columns on each side, which count as zeros in an average and never are a
    maximum.
    """

    kind: ClassVar[str] = "pool"
    reduction: Literal["average", "max"]
    size: int
    stride: int = 0
    padding: int = 0

    @property
    def step(self) -> int:
        """Pixels between two windows."""
        return self.stride or self.size


@dataclass(frozen=True)
class GlobalAveragePool:
    """(channels, height, width) -> (channels,)."""

    kind: ClassVar[str] = "global_average_pool"


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"


@dataclass(frozen=True)
class LeakyRelu:
    """x where it is positive, else slope * x."""

    kind: ClassVar[str] = "leaky_relu"
    slope: float = 0.01


@dataclass(frozen=True)
class Gelu:
    """x * Phi(x), with the standard normal distribution's Phi (Hendrycks and Gimpel, 2016); not the approximation."""

    kind: ClassVar[str] = "gelu"


@dataclass(frozen=True)
class Flatten:
    """(channels, height, width) -> (channels * height * width,). shape, the former: set by `Network.for_data`."""

    kind: ClassVar[str] = "flatten"
    shape: Shape = ()


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x); an empty shortcut is x itself."""

    kind: ClassVar[str] = "residual"
    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


Layer = (
    Conv | Dense | BatchNorm | Dropout | Pool | GlobalAveragePool | Relu | LeakyRelu | Gelu | Flatten | Residual
)  # fmt: skip
