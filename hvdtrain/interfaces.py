"""The contracts between the training loop and the frameworks: NumPy arrays go to a learner, floats come back.

In the order of a run: what it trains on (Dataset, Batch), who trains (Group), how gradients are combined (Strategy),
what trains (Learner), and what is saved (OptimizerState, Position, Checkpoint).
"""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, SupportsFloat

import numpy as np

from hvdtrain.config.compression import Method
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import LOOP, Phase

AVERAGE = "ema/"
"""Begins the names of the averages of weights in a checkpoint, among the arrays of the optimizer."""
MEAN = "compression/"
"""Begins the names of the state of `Learner.mean` there."""
ERROR = "error"
"""In that state: what a rank has still to send, float32 (n,); the only array of which each rank has its own."""
RANK_ERROR = f"{MEAN}{ERROR}"
OF_CHANGES = "of changes"
"""Is in that state where it belongs to changes of weights (`--sync-every`), and not to gradients."""
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
    """Names of the classes, by label."""
    validation: Source | None = None
    """Rows apart from both, by which the best weights are chosen (`--split`)."""

    @property
    def parts(self) -> dict[Part, Source]:
        """Its sources."""
        validation: dict[Part, Source] = {"validation": self.validation} if self.validation else {}
        return {"train": self.train, **validation, "test": self.test}

    @property
    def evaluated(self) -> EvaluatedPart:
        """The part that each evaluation of training is on, and by which the best checkpoint is chosen."""
        return "validation" if self.validation else "test"

    @functools.cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an image: (channels, height, width)."""
        return self.train[np.zeros(1, np.int64)][0].shape[1:]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the sources' fingerprints, in hexadecimal digits."""
        sources = (self.train, self.test, *([self.validation] if self.validation else []))
        return hashlib.sha256(" ".join(source.fingerprint for source in sources).encode()).hexdigest()


class Audit(NamedTuple):
    """A shard that two ranks compute, so that all can compare the bits (`--audit`)."""

    shard: int
    by: int
    """The rank that computes it besides the one whose shard it is."""
    only: bool = False
    """Whether all ranks only compute that shard, without an update."""


class Batch(NamedTuple):
    """One rank's rows of one step.

    arrays: those of the source, each of shape (n, ...), none where the learner keeps the rows; images are uint8, which
    stands for value / PIXEL_MAX, or float32 used as it is. weights: float32 (n,), as `sharding.Slice` has them. lr:
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


class Group(Protocol):
    """The processes of a job, seen from one of them; exchanges values in host memory.

    All methods are collectives: every rank calls them in the same order. They raise TrainingError or a framework's
    error if another rank is lost.
    """

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    @property
    def local_rank(self) -> int:
        """Rank among the processes on this host."""
        ...

    @property
    def controller(self) -> str:
        """What connects Horovod's processes, `Gloo` or `MPI`; empty for groups without Horovod."""
        ...

    @property
    def communicate_s(self) -> float | None:
        """Seconds so far in which this rank waited for sums over all ranks: of gradients, from a step's last gradient
        until all are combined, and each sum that is needed at once, as for batch normalization.

        Transfer, and waiting for other ranks. 0 in one process; None where it cannot be told. Any thread may read it.
        """
        ...

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over all ranks of a float64 vector of shape (n,)."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, ordered by rank, on every rank."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        ...

    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        """Replace `values` by those of rank `root`: uint8 (n,), contiguous, the same n on every rank.

        For arrays, which `collectives.arrays` cuts into messages; `broadcast` is for small values.
        """
        ...

    def close(self) -> None:
        """Leave the job in order."""
        ...


class Packing(Protocol):
    """A way to write float32 values as bytes."""

    def size(self, count: int) -> int:
        """Bytes of so many values."""
        ...

    def pack(self, values: np.ndarray) -> np.ndarray:
        """The bytes, uint8 (size(n),), of float32 values (n,)."""
        ...

    def unpack(self, packed: np.ndarray, count: int) -> np.ndarray:
        """The values, float32 (count,), that `pack` has written, as they were rounded."""
        ...


class AllreduceGroup(Group, Protocol):
    """A group that can also sum gradients, for strategies without an allreduce of their framework."""

    def allreduce(self, values: np.ndarray) -> None:
        """Sum `values` over all ranks, in place: shape (n,), any numeric type, contiguous, the same n on every rank."""
        ...

    def sum_packed(self, values: np.ndarray, packing: Packing) -> None:
        """`allreduce` of float32 values, which ranks send to each other as bytes: the same bits on every rank."""
        ...


Shapes = Sequence[tuple[int, int]]
"""Of each array in a vector as a matrix: rows and columns; (1, n) for an array of one dimension."""


class Mean(Protocol):
    """What computes the mean of a vector over all ranks, of gradients or of changes of weights, by a --compression."""

    @property
    def method(self) -> Method:
        """The method; never `auto`."""
        ...

    def average(self, values: np.ndarray, shapes: Shapes) -> None:
        """Replace `values`, (n,), by their mean over all ranks: the same bits on each. A collective.

        values: of a type of floating-point numbers, sent as float32 if they are compressed. shapes: of the arrays in
        it, always the same. Where a value is not finite on a rank, the mean has values that are not finite.
        """
        ...

    def arrays(self) -> Weights:
        """The state on which the next mean depends, by name; empty where there is none."""
        ...

    def load(self, arrays: Weights) -> None:
        """Set what `arrays` returned; of another method's state, what is of use."""
        ...


class Unsupported(NamedTuple):
    """An option of which a framework or a strategy supports some values only."""

    option: str
    """Name of the field of `Config`."""
    supported: tuple[Any, ...]
    reason: str
    """Why other values do not work, as the end of an error message."""


DEVICES_NORMALIZE = Unsupported("batch_norm", ("local",), "each device of a process normalizes its own rows")


CapturedPart = Literal["", "gradients", "step"]
"""What a CUDA graph has: nothing, forward and backward, or also the update."""


class Strategy:
    """How the gradients of ranks or devices are combined.

    Each framework derives from it a base class with the hooks that its learner calls, and from that one class per
    strategy. The first line of a strategy's docstring is its line in `--strategy help`.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that the strategy imports besides its framework."""
    unsupported: ClassVar[tuple[Unsupported, ...]] = ()
    """Options that the strategy does not support in full."""
    takes_optimizer: ClassVar[bool] = False
    """Whether it trains with the optimizer that a task brings."""
    many_devices: ClassVar[bool] = False
    """Whether one process can train on several devices."""
    sums_shards: ClassVar[bool] = False
    """Whether the group sums the gradients of shards (--shards), and the strategy leaves them alone then."""
    state_by_rank: bool = False
    """See `Learner.state_by_rank`."""
    captures: ClassVar[CapturedPart] = ""
    """What --cuda-graph captures; the update only where it needs no other rank."""
    mean: Mean | None = None
    """What combines the gradients, where that is not the framework or its library."""
    choice: str = ""
    """Of --compression auto: what was chosen, and why."""

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group, devices: int = 1) -> None:
        """group: the processes that train together. devices: copies of the network in this process."""
        self.config = config
        self.runtime = runtime
        self.group = group
        self.devices = devices


class OptimizerState(NamedTuple):
    """The state of an optimizer, in canonical names and layout.

    arrays: `momentum/<parameter>` for SGD, `mean/<parameter>` and `square/<parameter>` for Adam, float32. In a user's
        loop: what the optimizer and each object that it keeps give, under names that begin with the object's.
    scale: factor contained in the momentum. PyTorch and TensorFlow accumulate gradients (1.0), MXNet accumulates them
        times minus the learning rate. Saving it restores the state bit for bit in the same framework, and allows
        conversion in another one.
    updates: number of updates so far, which Adam's bias correction needs.
    extra: values of one framework only (fp16's loss scale); another framework starts without them.
    """

    arrays: Weights
    scale: float = 1.0
    updates: int = 0
    extra: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple's default is never written to)

    def without(self, prefix: str) -> OptimizerState:
        """Itself without the arrays whose names begin so."""
        arrays = {name: array for name, array in self.arrays.items() if not name.startswith(prefix)}
        return self._replace(arrays=arrays)

    def under(self, prefix: str) -> Weights:
        """The arrays whose names begin so, by the rest of their names."""
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


class Evaluated(NamedTuple):
    """Sums over the rows of an evaluation step."""

    loss: float
    metrics: dict[str, float]
    """By name; `accuracy` of a classifier is the number of rows whose class was predicted."""
    predicted: np.ndarray | None = None
    """Classes, int64 (n,), of a network as data."""


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


class Learner(abc.ABC):
    """One framework's model and optimizer. Knows tensors and devices, but no files, epochs or schedules.

    A framework overrides the methods without a default, `train_step` or `fit`, and of the others what it does better.
    """

    group: Group
    device: str
    """Kind of device: `cpu`, `cuda:0` and so on."""
    devices: int = 1
    """Number of devices in this process, each with a copy of the model."""
    local_weights: frozenset[str] = frozenset()
    """Names of `weights` of which each rank has its own values: running statistics of the rank's rows."""
    shared_statistics: frozenset[str] = frozenset()
    """With --shards: names of `weights` that are not trained; all ranks have the mean over the shards."""
    frozen: frozenset[str] = frozenset()
    """Names of `weights` that nothing changes, as far as they are known."""
    state_by_rank: bool = False
    """Whether the optimizer's state differs between ranks, because they combine updates instead of gradients."""
    skipped: int = 0
    """Number of updates skipped because gradients were not finite; the same on every rank."""
    mean: Mean | None = None
    """What combines gradients, or with --sync-every weights; its state belongs to checkpoints."""
    choice: str = ""
    """See `Strategy.choice`."""
    _averages: Any = None
    """A framework's `Averages`, with --ema."""
    between_steps: ClassVar[Phase] = LOOP
    """The phase in which each step begins and ends: whose loop it is."""

    @property
    def untrained(self) -> frozenset[str]:
        """Names of `weights` that the rows of a step change, and no update: they may be infinite, as masks are."""
        return self.local_weights | self.shared_statistics

    def seed(self, step: int, part: int) -> None:  # noqa: B027  (a model need not draw random numbers)
        """Seed the generators from which the model draws next; part: see `Batch.part`, or a number above all shards."""

    @property
    def learning_rate(self) -> float | None:
        """That of an optimizer whose rate a user's code sets; None where a batch has it."""
        return None

    def plan(self, steps: int, epochs: int) -> None:  # noqa: B027  (only a task's own schedule needs it)
        """Learn, before the first step or a state, that all epochs of the run have so many steps."""

    def train_step(self, batch: Batch) -> StepLoss:
        """One synchronous step on this rank's rows.

        Returns this rank's sum(weights * loss), which may not be computed yet; or those of the shards of all ranks.
        """
        losses: list[StepLoss] = []
        self.fit(iter([batch]), 1, losses.append)
        return losses[0]

    def fit(self, batches: Iterator[Batch], steps: int, after: Callable[[StepLoss], None]) -> None:
        """Train on `steps` batches. A framework with a loop of its own (Keras' and Module's fit) runs them in that.

        after: called as soon as each step is done, with what `train_step` returns. A framework may take the next batch
            before that. An exception that it raises ends the fit.
        """
        for batch in batches:
            after(self.train_step(batch))

    def read_losses(self, losses: list[Any]) -> list[float]:
        """The values of losses that `train_step` returned; waits for the last."""
        return [float(loss) for loss in losses]

    @abc.abstractmethod
    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        """Evaluate rows of a source."""

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Logits, float32 (n, classes); of networks as data only."""
        raise NotImplementedError

    @abc.abstractmethod
    def weights(self) -> Weights:
        """All parameters and running statistics, float32, in canonical names and layout; waits for the last update.

        The statistics are those of this rank's first device.
        """

    @abc.abstractmethod
    def load(self, weights: Weights) -> None:
        """Set all parameters and running statistics. Raises ValueError if names or shapes differ."""

    @abc.abstractmethod
    def optimizer_state(self) -> OptimizerState:
        """The state of the optimizer; of a script's, empty before the first step."""

    def takes(self, state: OptimizerState) -> bool:
        """Whether this may be the state of its optimizer. Raises ValueError if it is that of another network."""
        required = {name: array.shape for name, array in self.optimizer_state().arrays.items()}
        if required.keys() - state.arrays.keys():
            return False
        if any(state.arrays[name].shape != shape for name, shape in required.items()):
            raise ValueError("its shapes are not those of the network")
        return True

    def local_arrays(self) -> Weights:
        """Of the arrays that a checkpoint has with the optimizer's, those of which each rank has its own."""
        error = {name: array for name, array in self.mean_arrays().items() if name == RANK_ERROR}
        return error | (self.optimizer_state().arrays if self.state_by_rank else {})

    def mean_arrays(self) -> Weights:
        """The state of `mean`, by its names in a checkpoint."""
        arrays = self.mean.arrays() if self.mean else {}
        if arrays and self.state_by_rank:
            arrays = arrays | {OF_CHANGES: np.ones(1, np.int64)}
        return {f"{MEAN}{name}": array for name, array in arrays.items()}

    @abc.abstractmethod
    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Set the state of the optimizer."""

    def averages(self) -> Weights:
        """With --ema, the moving averages of the trained ones among `weights`; empty before the first update."""
        return self._averages.arrays() if self._averages else {}

    def load_averages(self, averages: Weights) -> None:
        """Set what `averages` returned; where it is empty, they begin with the next update."""
        if self._averages:
            self._averages.load(averages)

    def close(self) -> None:  # noqa: B027  (a model need not be changed for training)
        """Training has ended: leave the model as another run of this process may train it."""

    def compile(self, arrays: tuple[np.ndarray, ...]) -> float:
        """Compile the step for as many rows as these of a source (`--compile`); returns the seconds that it took.

        Raises an error of any kind if it cannot; the step is then as it was. By default there is nothing to compile.
        """
        return 0.0

    def keep_rows(self, arrays: tuple[np.ndarray, ...]) -> bool:
        """Keep the arrays of all training rows on the device, if they fit; whether batches then need none."""
        return False


@dataclass(frozen=True)
class Position:
    """How far training is: decides the next batch and its learning rate.

    The order of samples is a function of (seed, epoch), so this is all the random state there is.
    """

    epoch: int = 0
    """Number of completed epochs."""
    rows_in_epoch: int = 0
    """Rows of this epoch's order that steps have taken; valid even if the batch size changes."""
    step: int = 0
    """Number of steps done in all epochs."""
    global_batch: int = 0
    """Rows per step over all ranks, by which `step` counts."""
    seed: int = 0
    best: float = 0.0
    """The best score so far, `Score.order`; 0 for none."""
    best_epoch: int = 0
    """Number of complete epochs when it was measured."""
    best_by: str = ""
    """`Score.choice` of it."""

    def after_step(self, samples: int) -> Position:
        """After one more step, of an epoch of so many rows."""
        rows = min(self.rows_in_epoch + self.global_batch, samples)
        return replace(self, step=self.step + 1, rows_in_epoch=rows)

    def scored(self, order: float, choice: str) -> Position:
        """After an evaluation at the end of an epoch, which may be done again. order, choice: of its `Score`."""
        if order <= self.best and choice == self.best_by:
            return self
        return replace(self, best=order, best_epoch=self.epoch, best_by=choice)

    def has_waited(self, patience: int) -> bool:
        """Whether so many epochs have passed since the one with the best score; never for 0."""
        return 0 < patience <= self.epoch - self.best_epoch


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to be resumed, and what identifies it."""

    weights: Weights
    optimizer: OptimizerState
    position: Position
    model: str
    network: dict[str, Any]
    """From `networks.record.shaped_to_record`."""
    framework: str
    optimizer_name: str
    data: str
    """Fingerprint of the training data."""
    score: float = 0.0
    """Greater is better; 0 if it was not measured: `Score.order`."""
    classes: tuple[str, ...] = field(default_factory=tuple)
    init: str = ""
    """How the weights were initialized."""
    arithmetic: dict[str, Any] = field(default_factory=dict)
    """With --shards, what decided the bits besides options and data: `training.arithmetic.record`."""
    other_ranks: tuple[Weights, ...] = ()
    """The optimizer's arrays of ranks 1, 2, ... where each rank has its own (`Learner.state_by_rank`), else empty."""
    score_choice: str = ""
    """The value of --score that the score is by; empty for accuracy or loss, which nobody chose."""

    @property
    def averages(self) -> Weights:
        """See `Learner.averages`."""
        return self.optimizer.under(AVERAGE)

    @property
    def evaluated(self) -> Weights:
        """What evaluations measured: the weights, with their averages where there are such."""
        return self.weights | self.averages
