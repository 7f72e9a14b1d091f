"""What `run.py` compares: methods that send less, as rows, and what is trained with each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.config.option import arguments
from hvdtrain.config.options import from_recipe
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Dataset, Part
from hvdtrain.measure.bench.strategies import default_dataset
from hvdtrain.system.text import did_you_mean

BASE = "horovod"
"""The row of each framework that others are compared with: Horovod's float32."""
TORCH, MXNET = "peer_torch.py", "peer_mxnet.py"
"""Programs of peers, in this folder."""
POWERSGD_START = 10
"""The step in which the peer's PowerSGD begins to compress; those before it send everything."""
LENET = ("lenet",)
"""Of rows that leave out the slower network."""


class Task(NamedTuple):
    """A network, the part of the data on which it trains, and the accuracy that counts."""

    name: str
    recipe: str
    options: Mapping[str, Any]
    """Options in which it differs from its recipe."""
    rows: int
    """Of the training part: with so few, an evaluation comes after few steps."""
    test_rows: int
    accuracy: float

    @property
    def batch(self) -> int:
        """Rows of a step over all ranks."""
        return int(self.options["batch_size"])


TASKS = {
    task.name: task
    for task in (
        Task("lenet", "fashion", {"batch_size": 128, "lr": 0.08, "epochs": 6}, 8192, 4000, 0.78),
        Task("resnet20", "resnet20", {"batch_size": 64, "lr": 0.05, "epochs": 4}, 4096, 2000, 0.7),
    )
}
"""Batches are small, so that a slow link matters; the learning rate is the recipe's by the linear rule."""


class Row(NamedTuple):
    """A method: a strategy with options, or a peer's program with arguments."""

    name: str
    framework: str
    strategy: str
    options: Mapping[str, Any] = {}
    """Of training; of a peer's program, its own."""
    program: str = ""
    tasks: Sequence[str] = tuple(TASKS)

    @property
    def compression(self) -> str:
        """What is done to what is sent, as --compression names it."""
        return str(self.options.get("compression", "none"))

    @property
    def sync_every(self) -> int:
        """Steps from one exchange to the next."""
        return int(self.options.get("sync_every", 1))

    @property
    def base(self) -> str:
        """The row that it is compared with."""
        return f"{self.framework}/{BASE}"


def _ours(framework: str, strategy: str = "horovod", *, tasks: Sequence[str] = tuple(TASKS), **options: Any) -> Row:
    """A row of hvdtrain's: its name is made of what differs from the default."""
    parts = [str(options["compression"])] if "compression" in options else []
    if "sync_every" in options:
        parts.append(f"sync{options['sync_every']}")
    return Row("/".join(filter(None, (framework, strategy, "+".join(parts)))), framework, strategy, options, "", tasks)


def _peer(name: str, framework: str, program: str, **options: Any) -> Row:
    return Row(f"{framework}/{name}", framework, "", options, program, LENET)


WINNER: dict[str, Any] = {"compression": "powersgd:4"}
"""What the two other frameworks are measured with, besides float32."""
ROWS = (
    _ours("torch"),
    *(_ours("torch", compression=name, tasks=LENET) for name in ("fp16", "bf16", "powersgd:4")),
    *(_ours("torch", compression=name) for name in ("int8", "powersgd:2")),
    _ours("torch", sync_every=8, tasks=LENET),
    _ours("torch", compression="int8", sync_every=8),
    _peer("bare-ddp", "torch", TORCH),
    _peer("bare-ddp/fp16-hook", "torch", TORCH, hook="fp16", compression="bf16"),  # which sends as many bytes
    _peer("bare-ddp/powersgd-2-hook", "torch", TORCH, hook="powersgd", start=POWERSGD_START, compression="powersgd:2"),
    *(_ours(name, tasks=LENET, **options) for name in ("mxnet", "tensorflow") for options in ({}, WINNER)),
    _peer("bare-kvstore", "mxnet", MXNET),
    _peer("bare-kvstore/2bit", "mxnet", MXNET, threshold=0.5),
)


def choose(rows: Sequence[Row], wanted: Sequence[str]) -> list[Row]:
    """The rows that begin with one of `wanted`, and those they are compared with; all without any.

    A name of one row stands for this row alone. Raises UserError for a name that matches none.
    """
    known = {row.name for row in rows}
    for prefix in wanted:
        if not any(_matches(row, prefix, known) for row in rows):
            raise UserError(
                f"--rows {prefix}: no such row{did_you_mean(prefix, known)}", f"choose from {', '.join(sorted(known))}"
            )
    chosen = [row for row in rows if not wanted or any(_matches(row, prefix, known) for prefix in wanted)]
    bases = {row.base for row in chosen}
    return [row for row in rows if row in chosen or row.name in bases]


def _matches(row: Row, prefix: str, known: set[str]) -> bool:
    return row.name == prefix if prefix in known else f"{row.name}/".startswith(f"{prefix.rstrip('/')}/")


def training(row: Row, task: Task, seed: int, data: Path) -> dict[str, Any]:
    """The options that decide the result of a row."""
    return {**task.options, **row.options, "seed": seed, "data": str(data)}


def command(row: Row, task: Task, seed: int, data: Path) -> list[str]:
    """The options of training, of a row of hvdtrain's."""
    chosen = training(row, task, seed, data)
    return ["--framework", row.framework, "--strategy", row.strategy, "--recipe", task.recipe, *arguments(chosen)]


def as_peer(row: Row, task: Task, seed: int, data: Path) -> dict[str, Any]:
    """What a peer's program gets as JSON: the options of the recipe that it knows, and those of its row."""
    config = from_recipe(task.recipe, **{**task.options, "seed": seed, "data": str(data)})
    names = ("model", "data", "init", "seed", "epochs", "batch_size", "lr", "momentum", "nesterov", "weight_decay",
             "schedule", "warmup_epochs")  # fmt: skip
    own = {name: value for name, value in row.options.items() if name != "compression"}
    more = {"rank": int(row.compression.partition(":")[2])} if row.compression.startswith("powersgd") else {}
    return {"recipe": task.recipe, **{name: getattr(config, name) for name in names}, **own, **more}


def write_data(task: Task, folder: Path) -> Path:
    """The part of Fashion-MNIST on which a task trains, in a folder that is made if it is not there.

    Without HVDTRAIN_DATA the images are synthetic. The rows are chosen at random, the same each time.
    """
    name = default_dataset()
    made = folder / f"{task.name}-{name}-{task.rows}-{task.test_rows}"
    if not (made / "test.npz").exists():
        made.mkdir(parents=True, exist_ok=True)
        dataset = load_dataset(name)
        counts: dict[Part, int] = {"train": task.rows, "test": task.test_rows}
        for part, count in counts.items():
            images, labels = _some(dataset, part, count)
            np.savez(made / f"{part}.npz", images=images, labels=labels)
    return made


def _some(dataset: Dataset, part: Part, count: int) -> Sequence[np.ndarray]:
    rows = np.random.default_rng(0).permutation(len(dataset.parts[part]))[:count]
    return dataset.parts[part][np.sort(rows)]
