"""What a run trains on: a data set, and the rows of a step."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

PIXEL_MAX = 255
"""Networks get uint8 pixels divided by this; each framework's `network.scale_pixels` does it."""


Part = Literal["train", "validation", "test"]
"""Of the data. Evaluations while a run trains are of validation data where there is some, else of test data."""
EvaluatedPart = Literal["validation", "test"]


class Source(Protocol):
    """Rows of training or test data, read by their numbers."""

    @property
    def fingerprint(self) -> str:
        """Text that changes with the content, by which a resumed run recognizes its data."""
        ...

    def __len__(self) -> int:
        """Number of rows, at least 1."""
        ...

    def __getitem__(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """The arrays of these rows, each of shape (n, ...), in the order of `rows`: int64 (n,).

        For images: (n, channels, height, width), uint8 or float32 in [0, 1], and labels, int64 (n,), from 0 to below
        the number of classes.
        """
        ...


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
        for weights in (getattr(source, "weights", None) for source in sources):
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
    itself then has no rows. all_shards: with them, the numbers of the shards of all ranks that have rows. audit: that
    of the step. is_witness: whether it is another rank's shard, which is only compared; the last of `shards`.
    """

    arrays: tuple[np.ndarray, ...]
    weights: np.ndarray
    lr: float
    step: int
    rows: np.ndarray
    part: int = 0
    shards: tuple[Batch, ...] | None = None
    all_shards: tuple[int, ...] = ()
    audit: Audit | None = None
    is_witness: bool = False
