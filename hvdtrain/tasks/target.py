"""What a run trains: the base class of networks as data, tasks of a user's, and scripts with a loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from hvdtrain.config.forms import Split
from hvdtrain.config.option import facts
from hvdtrain.config.options import Config
from hvdtrain.datasets.division import Division
from hvdtrain.datasets.formats.python_objects import load_parts
from hvdtrain.datasets.formats.table_files import shown
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.datasets.validation import advice, suspicious
from hvdtrain.interfaces.reading import Dataset, Part
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.networks.record import shaped_to_record
from hvdtrain.tasks.rows import LabelCheck

TRIED_ROWS = 4
"""Rows on which a user's code is tried out before training."""
MAX_COLUMNS = 20
"""Of a table, in a line of the log."""
MAX_CONFUSED = 1000
"""With more classes there is no confusion matrix: its size grows with their square, and nobody reads it."""


class Target:
    """What a learner trains. The defaults are those of a user's code, of which only its framework knows more."""

    kind: ClassVar[str]
    """`network`, `task` or `script`: what it is called in messages, and which objective of a framework trains it."""
    labels_at = 1
    """Which of the arrays of a row has its class, if it has one."""
    unit: ClassVar[str] = "rows"
    """What a row is called in messages."""
    is_portable: ClassVar[bool] = False
    """Whether it is data: every framework trains it in each of its styles, and resumes checkpoints of the others."""
    loader_spec: dict[str, Any] | None = None
    """How other processes load the data (`datasets.worker.WorkerProcess`); None where only this one can."""

    @property
    def ignored_options(self) -> Sequence[str]:
        """Options of `Config` that the user's code decides instead; the record of a run leaves them out."""
        return ()

    @property
    def facts(self) -> dict[str, Any]:
        """What rules need to know about it (`config.rules`)."""
        return {"is_code": not self.is_portable, "gradients": self.gradients}

    @property
    def labels(self) -> LabelCheck | None:
        """Checks the rows' labels once learners have told it the number of classes; None if nothing is to check."""
        return None

    @property
    def gradients(self) -> int | None:
        """Number of parameters that are trained; None if only the framework knows it."""
        return None

    @property
    def flops_per_row(self) -> int | None:
        """Floating-point operations of forward and backward for one row; None if nothing counts them."""
        return None

    @property
    def needs_exact_batches(self) -> bool:
        """Whether a row of weight zero may change the model, as it does in the statistics of batch normalization."""
        return True

    @property
    def mixes_rows(self) -> bool:
        """Whether the user says that the rows of a batch belong together, so that the loss of one depends on others."""
        return False

    @property
    def needed_rows(self) -> int:
        """Number of rows that the model takes, where it does not take any number, as far as is known; else 0."""
        return 0

    def title(self, config: Config) -> str:
        """What is trained, and on what."""
        return config.model

    def record(self) -> dict[str, Any]:
        """It as JSON values, by which a resumed run recognizes it."""
        raise NotImplementedError

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Whether this is the record of the same target."""
        return self.record() == record

    def initial_weights(self, config: Config) -> Weights | None:
        """The weights that training begins with; None if the model has its own."""
        return None

    def confused_classes(self, dataset: Dataset) -> int:
        """Number of classes of the confusion matrix, 0 for none."""
        return 0

    def notice(self, config: Config) -> str:
        """What a user has to know when it begins to train; empty for nothing."""
        return (
            f"{config.model} is a {self.kind}: its checkpoints stay in {config.framework}, and where its model has "
            "batch normalization, each rank, or with --shards each shard, normalizes its own rows"
        )

    def tried_rows(self, dataset: Dataset, part: Part, count: int) -> tuple[np.ndarray, ...]:
        """So many rows of a part of the data, of which a few are read: those of a class may follow each other."""
        source = dataset.parts[part]
        last = min(TRIED_ROWS, len(source)) if source.is_stream else len(source)
        rows = source[np.linspace(0, last - 1, min(TRIED_ROWS, last)).astype(np.int64)]
        return tuple(array[np.arange(count) % len(array)] for array in rows)

    def guard(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the user's returns; what: names it in the error that a task raises."""
        return function(*arguments)

    def problems(self, dataset: Dataset) -> list[str]:
        """What is probably wrong with the data: each problem with its remedy, in one sentence."""
        return advice(dataset)


@dataclass(frozen=True, eq=False)
class NetworkTarget(Target):
    """A network as data, which classifies images, or predicts a number for each."""

    network: ShapedNetwork
    loader_spec: dict[str, Any] | None = None
    table: Mapping[str, Any] = field(default_factory=dict)
    """See `Dataset.table`."""
    kind = "network"
    unit = "images"
    is_portable = True

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "normalizes": bool(self.network.batch_norms)}

    @property
    def gradients(self) -> int:
        return len(list(self.network.parameters()))

    @property
    def flops_per_row(self) -> int:
        return self.network.training_flops

    @property
    def needs_exact_batches(self) -> bool:
        return bool(self.network.batch_norms)

    def title(self, config: Config) -> str:
        return f"{config.model} on {config.data}"

    def record(self) -> dict[str, Any]:
        return shaped_to_record(self.network) | ({"table": dict(self.table)} if self.table else {})

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Other training rows, which the data's fingerprint tells, do not make another network."""
        return {**self.record(), "table": None} == {**record, "table": None}

    def initial_weights(self, config: Config) -> Weights:
        return initial_weights(self.network, config.init, config.seed)

    def confused_classes(self, dataset: Dataset) -> int:
        return len(dataset.classes)

    def notice(self, config: Config) -> str:
        read = [f"{name}: {meaning}" for name, meaning in self.table.get("read", {}).items()]
        form = [f"{name.replace('_', ' ')} {value!r}" for name, value in (self.table.get("form") or {}).items()]
        columns = "; ".join(filter(None, [shown(read, MAX_COLUMNS), shown(form)]))
        return f"reads {columns}; --label, --columns, --target and --scale decide otherwise" if read else ""

    def problems(self, dataset: Dataset) -> list[str]:
        return suspicious(dataset)


@dataclass(frozen=True, eq=False)
class Script(Target):
    """A script with a loop of its own (`hvdtrain.start`): it makes model, optimizer and losses.

    name: of its file. given: its options, before they have it as the model.
    """

    name: str
    given: Config
    mixes_rows: bool = False
    kind = "script"

    @property
    def ignored_options(self) -> Sequence[str]:
        return [name for name, about in facts(Config).items() if about.decided_by]

    @property
    def facts(self) -> dict[str, Any]:
        is_other = self.given.model not in (Config.model, self.name)
        untested = Split.parse(self.given.split).untested
        return {**super().facts, "script": self.name, "untested": untested, "is_other": is_other}

    def record(self) -> dict[str, Any]:
        return {"task": self.name, "options": {}}

    def load(self, train: Any, test: Any, validation: Any, config: Config) -> Dataset:
        """The script's rows, which are what a task's data() returns. validation, test: None for none.

        Raises UserError for rows of another kind.
        """
        division = Division.by(config)
        if test is None:
            test = ArraySource(np.empty(0))
            test.fingerprint = "no rows"  # as earlier versions record it
        return load_parts(self.name, train, validation, test, config.on_bad_row == "skip", division, labels_at=1)


def step_seeds(seed: int, step: int, part: int, *generator: int) -> np.random.SeedSequence:
    """Seeds of a part of a step for a user's code, by which a resumed run draws the same numbers.

    part: `Batch.part`. generator: its number, if it has one.
    """
    return np.random.SeedSequence([seed, 2, step, part, *generator])


def step_seed(seed: int, step: int, part: int) -> int:
    """One of them, below 2^64."""
    return int(step_seeds(seed, step, part).generate_state(1, np.uint64)[0])
