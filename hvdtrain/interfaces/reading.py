"""What a run trains on: a data set, and the rows of a step."""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from hvdtrain.errors import UserError

PIXEL_MAX = 255
"""Networks get uint8 pixels divided by this; each framework's `network.scale_pixels` does it."""


Part = Literal["train", "validation", "test"]
"""Of the data. Evaluations while a run trains are of validation data where there is some, else of test data."""
EvaluatedPart = Literal["validation", "test"]


class Draw(NamedTuple):
    """What the random numbers of a row depend on, besides its number."""

    seed: int
    epoch: int
    """Number of completed epochs."""


class RowError(UserError):
    """A row that cannot be read, or is unlike the others."""


class Rows(NamedTuple):
    """Rows of a source, and which of them are bad."""

    arrays: tuple[np.ndarray, ...]
    """Those of `Source.read`; a bad row is a copy of a good one."""
    bad: Mapping[int, RowError] = {}
    """What is wrong with each bad row, by its position in the arrays."""


class Source(abc.ABC):
    """Rows of a part of the data, read by their numbers."""

    in_memory = False
    """Whether reading takes no time worth mentioning."""
    background = "threads"
    """How rows are best read ahead: `threads`, where reading leaves Python to others most of the time; `processes`."""
    is_stream = False
    """Whether rows have no numbers of their own: reading an earlier one begins anew (`datasets.streams`)."""
    kept = 0
    """Latest rows that a stream can give again without that."""
    advice: tuple[str, ...] = ()
    """What may be a mistake in the data."""
    weights: np.ndarray | None = None
    """Of the rows, float64 (n,); None where all have the same."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Text that changes with the content, by which a resumed run recognizes its data."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of rows, at least 1."""

    @abc.abstractmethod
    def read(self, rows: np.ndarray, draw: Draw | None = None) -> Rows:
        """These rows, int64 (n,), as arrays of shape (n, ...), in this order.

        For images: (n, channels, height, width), uint8 or float32 in [0, 1], and labels, int64 (n,), from 0 to below
        the number of classes. draw: what their random numbers depend on; None where it does not matter. Raises RowError
        for the first bad row, unless they are skipped; DataChanged.
        """

    def __getitem__(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return self.read(rows).arrays

    @property
    def unaugmented(self) -> Source:
        """The rows without what a task's augment() changes in them."""
        return self

    def labels(self, position: int) -> np.ndarray | None:
        """The classes of all rows, integers (n,), where they are known without reading rows; else None.

        position: among the arrays of a row.
        """
        return None


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a run trains on, and what it is tested on."""

    name: str
    train: Source
    test: Source
    classes: tuple[str, ...]
    """Names of the classes, by label; none where a label is a number to predict, float32."""
    validation: Source | None = None
    """Rows apart from both, by which the best weights are chosen (`--split`)."""
    table: Mapping[str, Any] = field(default_factory=dict)
    """How a table's columns became numbers, as JSON values (`formats.table_columns.TableRecipe`); else empty."""

    @property
    def parts(self) -> dict[Part, Source]:
        """Its sources."""
        validation: dict[Part, Source] = {"validation": self.validation} if self.validation else {}
        return {"train": self.train, **validation, "test": self.test}

    @property
    def evaluated(self) -> EvaluatedPart:
        """The part that each evaluation of training is on, and by which the best checkpoint is chosen."""
        return "validation" if self.validation else "test"

    @property
    def label_scale(self) -> float:
        """By which numbers to predict were divided."""
        return float(self.table.get("label", {}).get("scale", 1.0))

    @functools.cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an image: (channels, height, width)."""
        return self.train[np.zeros(1, np.int64)][0].shape[1:]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the sources' fingerprints, and of the weights of their rows, in hexadecimal digits."""
        sources = (self.train, self.test, *([self.validation] if self.validation else []))
        digest = hashlib.sha256(" ".join(source.fingerprint for source in sources).encode())
        for weights in (source.weights for source in sources):
            digest.update(b"" if weights is None else weights.tobytes())
        return digest.hexdigest()


class Audit(NamedTuple):
    """A shard that two ranks compute, so that all can compare the bits (`--audit`)."""

    shard: int
    by: int
    """The rank that computes it besides the one whose shard it is."""
    only: bool = False
    """Whether all ranks only compute that shard, without an update."""


class Batch(NamedTuple):
    """One rank's rows of one step.

    arrays: those of the source, each of shape (n, ...); images are uint8, which stands for value / PIXEL_MAX, or
    float32 used as it is. weights: float32 (n,), as `sharding.Slice` has them. lr:
    learning rate of this step. step: its number, counted from 0. rows: int64 (n,), the rows' numbers in the source.
    part: the number of this part of the global batch, which decides its random numbers: the rank, or with --shards the
    shard. shards: with --shards, this rank's shards that have rows, in the order in which they are computed; the step
    itself then has no rows. by_rank: with them, the numbers of each rank's shards that have rows. audit: that of the
    step. is_witness: whether it is another rank's shard, which is only compared; the last of `shards`.
    """

    arrays: tuple[np.ndarray, ...]
    weights: np.ndarray
    lr: float
    step: int
    rows: np.ndarray
    part: int = 0
    shards: tuple[Batch, ...] | None = None
    by_rank: tuple[tuple[int, ...], ...] = ()
    audit: Audit | None = None
    is_witness: bool = False
