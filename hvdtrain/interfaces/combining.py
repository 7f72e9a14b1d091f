"""What a framework's step gives to be combined over ranks, and what it gets back: arrays on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, SupportsFloat

import numpy as np

from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights

Types = tuple[tuple[type[np.floating[Any]], tuple[int, ...]], ...]
"""Of arrays: float64 or float32, and their shapes."""
Shapes = Sequence[tuple[int, int]]
"""Of each array in a vector as a matrix: rows and columns; (1, n) for an array of one dimension."""


def type_of(dtype: object, shape: Sequence[int]) -> tuple[type[np.floating[Any]], tuple[int, ...]]:
    """The type in which arrays are added: float64 if they are float64, else float32. dtype: as its library has it."""
    return np.float64 if "float64" in str(dtype) else np.float32, tuple(shape)


class ShardLoss(NamedTuple):
    """The loss of a shard: sum(weights * loss) over its rows."""

    shard: int
    rank: int
    """The rank that computed it, as the group numbered it in that step."""
    value: float

    def __float__(self) -> float:
        return self.value


StepLoss = SupportsFloat | list[ShardLoss]
"""The loss of a step on a rank, which float() waits for; with --shards, those of all ranks' shards, in their order."""


class Gradients(NamedTuple):
    """What the rows of a batch give, or of one of its shards."""

    loss: Any
    """sum(weights * loss) over the rows, which float() waits for."""
    arrays: list[np.ndarray]
    """The gradient of each trained parameter, which nothing changes afterwards; views of the framework's memory where
    it can. A complex one as two real numbers."""
    statistics: list[np.ndarray]
    """The model's running statistics after these rows; empty where the combiner leaves them alone."""


class Combined(NamedTuple):
    """A step over all ranks."""

    arrays: list[np.ndarray]
    """The gradients of the global batch."""
    statistics: list[np.ndarray]
    """The running statistics that all ranks then have, if they are combined."""
    loss: StepLoss


class Combiner(Protocol):
    """A way to combine the gradients of ranks on the host, in any framework: one class each.

    In each step: `begin`, `add` for each part of the batch that this rank computes, and `combine`, which is a
    collective. Made with the group and the types of the gradients.
    """

    @property
    def mean(self) -> Mean | None:
        """What it averages gradients by, whose state belongs to checkpoints."""

    @property
    def sums_statistics(self) -> bool:
        """Whether running statistics are combined as well; each part of a batch then begins with the same ones."""

    def begin(self, step: Batch, statistics: Sequence[np.ndarray]) -> None:
        """Begin a step, with the running statistics of its beginning."""

    def add(self, gradients: Gradients) -> None:
        """Take the next part of the batch: the batch itself, or the next one of its `shards`."""

    def combine(self) -> Combined:
        """The step over all ranks; call it on every rank."""


class Packing(Protocol):
    """A way to write float32 values as bytes."""

    def size(self, count: int) -> int:
        """Bytes of so many values."""

    def pack(self, values: np.ndarray) -> np.ndarray:
        """The bytes, uint8 (size(n),), of float32 values (n,)."""

    def unpack(self, packed: np.ndarray, count: int) -> np.ndarray:
        """The values, float32 (count,), that `pack` has written, as they were rounded."""


class Mean(Protocol):
    """What computes the mean of a vector over all ranks, of gradients or of changes of weights, by a --compression."""

    def average(self, values: np.ndarray, shapes: Shapes) -> None:
        """Replace `values`, (n,), by their mean over all ranks: the same bits on each. A collective.

        values: of a type of floating-point numbers, sent as float32 if they are compressed. shapes: of the arrays in
        it, always the same. Where a value is not finite on a rank, the mean has values that are not finite.
        """

    def arrays(self) -> Weights:
        """The state on which the next mean depends, by name; empty where there is none."""

    def load(self, arrays: Weights) -> None:
        """Set what `arrays` returned; from the state of another method, restore what applies."""
