"""What trains: one framework's model and optimizer, how far they are, and what is saved of them."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager as ContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.interfaces.combining import Mean, StepLoss
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import Weights, changed_names
from hvdtrain.system.checkpoint_folder import CheckpointFacts, Position
from hvdtrain.system.phases import LOOP, Phase

AVERAGE = "ema/"
"""Begins the names of the averages of weights in a checkpoint, among the arrays of the optimizer."""
MEAN = "compression/"
"""Begins the names of the state of `Learner.mean` there."""
ERROR = "error"
"""In that state: what a rank has still to send, float32 (n,); the only array of which each rank has its own."""
RANK_ERROR = f"{MEAN}{ERROR}"
IS_DELTA = "of changes"
"""In that state if it is of changes of weights (`--sync-every`), and not of gradients."""


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
    """Classes, int64 (n,), of a classifier with the default loss, or numbers, float32 (n,), of a network as data."""
    losses: Callable[[], np.ndarray] | None = None
    """Copies those of each row, (n,), to the host; None where the learner does not give them."""


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
    global_settings: Mapping[str, str] = {}
    """What the framework keeps for all models of a process and a user's model depends on, by name."""
    optimizer_order: tuple[str, ...] = ()
    """Names of the parameters as the optimizer has them, which a user's code may decide: the same on every rank."""
    state_by_rank: bool = False
    """Whether the optimizer's state differs between ranks, because they combine updates instead of gradients."""
    skipped: int = 0
    """Number of updates skipped because gradients were not finite; the same on every rank."""
    eval_modes: tuple[Callable[[], ContextManager[Any]], ...] = (contextlib.nullcontext,)
    """In which a user's code is evaluated, the cheapest first: the others where it computes gradients by itself."""
    changes_in_evaluation: bool = False
    """Whether an evaluation changes what `weights` returns, so that each of its steps must put it back."""
    limits_rows: str = ""
    """A parameter of which a forward pass shortens the rows that it looks up, as far as is known; empty for none."""
    mean: Mean | None = None
    """What combines gradients, or with --sync-every weights; its state belongs to checkpoints."""
    length: Mapping[str, float] = {}
    """Steps and epochs of the run, and what else decides the rates of a user's schedule."""
    resumed: tuple[Position, Position]
    """Where the run to resume was by its checkpoint, and where it is as this job counts."""
    _averages: Any = None
    """Of a framework, with --ema."""
    between_steps: ClassVar[Phase] = LOOP
    """The phase in which each step begins and ends: whose loop it is."""

    @property
    def untrained(self) -> frozenset[str]:
        """Names of `weights` that the rows of a step change, and no update: they may be infinite, as masks are."""
        return self.local_weights | self.shared_statistics

    def seed(self, step: int, part: int) -> None:  # noqa: B027  (a model need not draw random numbers)
        """Seed the generators from which the model draws next; part: see `Batch.part`, or a number above all shards."""

    def seed_trial(self) -> None:
        """Seed all generators that may draw in `try_step` and `try_evaluation`."""
        self.seed(0, 0)

    @property
    def learning_rate(self) -> float | None:
        """That of an optimizer whose rate a user's code sets; None where a batch has it."""
        return None

    def settings(self) -> dict[str, Any]:
        """The optimizer's numbers, such as its rates and how often it made an update, as JSON values by name.

        A user's code sets those of its own optimizer: the same on every rank, else the ranks' weights drift apart.
        """
        return {}

    def set_length(self, steps: int, epochs: int) -> None:
        """Learn, before the first step or a state, that all epochs of the run have so many steps."""
        self.length = {"steps": steps, "epochs": epochs}

    def has_other_length(self, state: OptimizerState) -> bool:
        """Whether a state is of a run of another length, so that new schedules have to make its steps."""
        return state.extra.get("length", self.length) != self.length

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

    def try_step(self, batch: Batch) -> Any:  # noqa: B027  (networks as data take any number of rows)
        """The losses of a batch's rows in training, or their sums, computed alone; inside of `unchanged`."""

    def keep_in_shards(self, names: list[str]) -> None:
        """Learn that forward passes change these `weights`, which then are summed over shards as statistics are."""
        raise NotImplementedError

    @contextlib.contextmanager
    def unchanged(self, is_trial: bool = False) -> Iterator[None]:
        """What happens inside leaves `weights` as they were. is_trial: and all else that the model may have changed."""
        before = self.weights()
        try:
            yield
        except Exception:
            with contextlib.suppress(Exception):  # where an operation of MXNet has failed, arrays may have no values
                self.load(before)
            raise
        if changed_names(before, self.weights()):
            self.load(before)

    def evaluate(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        """What `eval_step` returns, in the first of `eval_modes`; it leaves no trace."""
        with self.unchanged() if self.changes_in_evaluation else contextlib.nullcontext(), self.eval_modes[0]():
            return self.eval_step(arrays)

    def try_evaluation(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        """As `eval_step`, of so few rows that nothing is compiled for it."""
        with self.eval_modes[0]():
            return self.eval_step(arrays)

    def choose_eval_mode(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        """Leave the first of `eval_modes` in which `eval_step` works, and return what it does.

        Raises the first error if there is none.
        """
        errors: list[Exception] = []
        for mode in self.eval_modes:
            try:
                with mode():
                    evaluated = self.eval_step(arrays)
            except Exception as error:
                if isinstance(error, UserError) and not error.__cause__:  # no failure of the user's code
                    raise
                errors.append(error)
            else:
                self.eval_modes = (mode,)
                return evaluated
        raise errors[0]

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

    def accepts_state(self, state: OptimizerState) -> bool:
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
            arrays = arrays | {IS_DELTA: np.ones(1, np.int64)}
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

    def begin_training(self) -> None:  # noqa: B027  (most optimizers have no modes)
        """Set the optimizer's mode of training, as a script may have set another one."""

    def evaluation_mode(self) -> ContextManager[None]:
        """Inside, an optimizer that has a mode of evaluations is in it."""
        return getattr(self._averages, "evaluating", contextlib.nullcontext)()

    def close(self) -> None:  # noqa: B027  (a model need not be changed for training)
        """Training has ended: leave the model as another run of this process may train it."""

    def compile(self, arrays: tuple[np.ndarray, ...]) -> float:
        """Compile the step for as many rows as these of a source (`--compile`); returns the seconds that it took.

        Raises an error of any kind if it cannot; the step is then as it was. By default there is nothing to compile.
        """
        return 0.0


@dataclass(frozen=True)
class Checkpoint(CheckpointFacts):
    """All that a run needs to be resumed, and what identifies it."""

    weights: Weights = field(default_factory=dict)
    optimizer: OptimizerState = field(default_factory=lambda: OptimizerState({}))
    other_ranks: tuple[Weights, ...] = ()
    """The optimizer's arrays of ranks 1, 2, ... where each rank has its own (`Learner.state_by_rank`), else empty."""

    @property
    def averages(self) -> Weights:
        """See `Learner.averages`."""
        return self.optimizer.under(AVERAGE)

    @property
    def evaluated(self) -> Weights:
        """What evaluations measured: the weights, with their averages where there are such."""
        return self.weights | self.averages
