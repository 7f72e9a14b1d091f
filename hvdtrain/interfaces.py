"""The contracts between the loop and the frameworks. NumPy travels to the learner, floats travel back."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, SupportsFloat, runtime_checkable

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.networks.description import Weights

PIXEL_MAX = 255
"""Networks see uint8 pixels divided by this; each framework's `network.scale_pixels` does it."""
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
"""Adam's constants in every framework; epsilon is that of Algorithm 1 in Kingma and Ba (2015)."""


class OptimizerState(NamedTuple):
    """What an optimizer remembers, in canonical names and layout.

    arrays: `momentum/<parameter>` for SGD, `mean/<parameter>` and `square/<parameter>` for Adam, float32.
    scale: the momentum is kept times this factor. PyTorch and TensorFlow keep the sum of gradients (1.0), MXNet
        keeps it times minus the learning rate. Saved with it, the state is restored bit for bit where it came
        from, and converted elsewhere.
    updates: number of updates made, which Adam's bias correction needs.
    extra: what belongs to one framework alone (fp16's loss scale); another framework starts it afresh.
    """

    arrays: Weights
    scale: float = 1.0
    updates: int = 0
    extra: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple's default is never written to)


class Group(Protocol):
    """The processes of a job, seen from one of them. Host values only."""

    rank: int
    size: int
    local_rank: int

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over all ranks of a float64 vector of shape (n,)."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order, on every rank."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        ...

    def close(self) -> None:
        """Leave the job in order; call it on every rank."""
        ...


class AllreduceGroup(Group, Protocol):
    """A group that can also sum gradients, for strategies without an allreduce of their framework."""

    def allreduce(self, values: np.ndarray) -> None:
        """Sum `values` over all ranks, in place: shape (n,), any numeric type, contiguous, the same n on every rank."""
        ...


class Unsupported(NamedTuple):
    """An option of which a framework or a strategy supports some values only."""

    option: str
    """Name of the field of `Config`."""
    supported: tuple[Any, ...]
    reason: str
    """Why other values do not work, as the end of an error message."""


class Strategy:
    """How the gradients of ranks or devices are combined.

    Each framework derives from it a base class with the hooks that its learner calls, and from that one class per
    strategy. The first line of a strategy's docstring is its line in `--strategy help`.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that the strategy imports besides its framework."""
    unsupported: ClassVar[tuple[Unsupported, ...]] = ()
    """Options that the strategy does not support in full."""
    many_devices: ClassVar[bool] = False
    """Whether one process can train on several devices."""

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group, devices: int = 1) -> None:
        """group: the processes that train together. devices: copies of the network in this process."""
        self.config = config
        self.runtime = runtime
        self.group = group
        self.devices = devices


class Batch(NamedTuple):
    """This rank's rows of one step.

    images: uint8 (n, channels, height, width), read as value / 255, or float32 taken as it is.
    labels: int64 (n,). weights: float32 (n,), from `shard`. lr: learning rate of this step.
    """

    images: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    lr: float


class Learner(Protocol):
    """One framework's network. Knows tensors and devices; not ranks, files, epochs or options' origins."""

    group: Group
    device: str
    devices: int
    """Devices in this process, each with a copy of the network."""

    @property
    def skipped(self) -> int:
        """Updates that were skipped because gradients were not finite (the same on every rank)."""
        ...

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> SupportsFloat:
        """One synchronous step on this rank's `Batch`.

        Returns this rank's sum(weights * loss), which need not be computed yet: float() waits for it.
        """
        ...

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        """Summed loss, and the predicted classes, int64 (n,)."""
        ...

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Logits, float32 (n, classes)."""
        ...

    def weights(self) -> Weights:
        """All parameters, float32, in canonical names and layout."""
        ...

    def load(self, weights: Weights) -> None:
        """Set all parameters. Raises KeyError or ValueError where names or shapes differ."""
        ...

    def optimizer_state(self) -> OptimizerState:
        """What the optimizer remembers."""
        ...

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Set what the optimizer remembers."""
        ...


@runtime_checkable
class FitLearner(Protocol):
    """A learner whose framework brings a loop of its own (Keras' and Module's fit), to which ours feeds an epoch."""

    def fit(self, batches: Iterator[Batch], steps: int, after: Callable[[SupportsFloat], None]) -> None:
        """Train on `steps` batches by the framework's loop; `after(loss)` as soon as each step is done, where `loss`
        is what `train_step` would have returned.

        A framework may take the next batch before it told that the last one is done. What `after` raises ends the fit.
        """
        ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels, writable and contiguous.

    train_images, test_images: (n, channels, height, width), n >= 1; uint8, or float32 in [0, 1] taken as is.
    train_labels, test_labels: (n,), int64, from 0 to below the network's number of classes.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    """What the labels mean."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over shapes, types and bytes of the four arrays, in hexadecimal digits."""
        digest = hashlib.sha256()
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Position:
    """Where training stands: what decides which batch and which learning rate come next.

    The order of samples is a function of (seed, epoch), so this is all the random state there is.
    """

    epoch: int = 0
    rows_in_epoch: int = 0
    """Rows of this epoch's order that steps have taken: it counts as well where batches change their size."""
    step: int = 0
    global_batch: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on, and what tells one checkpoint from another."""

    weights: Weights
    optimizer: OptimizerState
    position: Position
    model: str
    framework: str
    optimizer_name: str
    data: str
    """Fingerprint of the data trained on."""
    score: float = 0.0
    """Test accuracy, 0 where not evaluated."""
    classes: tuple[str, ...] = field(default_factory=tuple)


class ElasticMemory(Protocol):
    """Where an elastic job keeps the state that all ranks had last, for those that are there after a change."""

    saved: tuple[Path, Checkpoint] | None
    """The run's folder, and the state; None before the first `commit`."""

    def commit(self, group: Group, folder: Path, checkpoint: Checkpoint) -> None:
        """Keep it; leaves training, by an exception of Horovod's, where hosts came or went. On all ranks together."""
