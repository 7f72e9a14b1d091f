"""Trackers: they show or store the records of runs, in addition to their folders.

There are hvdtrain's own, and those of packages that name one as an entry point. `tracking` hands them a run's records.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from hvdtrain.errors import UserError
from hvdtrain.runs.metrics import LOGGED
from hvdtrain.system.text import did_you_mean, printable

GROUP = "hvdtrain.trackers"
"""The group of entry points."""
BUILT_IN = {
    "mlflow": "hvdtrain.runs.trackers.mlflow:MLflow",
    "tensorboard": "hvdtrain.runs.trackers.tensorboard:TensorBoard",
    "wandb": "hvdtrain.runs.trackers.wandb:WeightsAndBiases",
}
"""The names of hvdtrain's own, which no package replaces; each needs the extra of its name."""
SILENT = {"mlflow": ("MLFLOW_DISABLE_TELEMETRY", "true"), "wandb": ("WANDB_ERROR_REPORTING", "false")}
"""The variables by which libraries report nothing to their makers."""
DESCRIBING = {"kind", "step", "time", "repeated"}
"""What describes a record, and is not one of its values."""
LISTS_OF_RANKS: dict[Any, tuple[str, ...]] = {"members": ("ranks", "lost", "joined")}
"""Lists that name ranks, by kind of record; others have a value for each rank."""


class Tracker(Protocol):
    """Receives a run's records on rank 0, in a thread of its own; packages name theirs as an entry point.

    It is made without arguments. What one of its methods raises is logged once, and costs the records of that call.
    """

    def start(self, run_id: str, config: dict[str, Any]) -> None:
        """A run starts, or is resumed: a run that is resumed in its folder has the same id again.

        run_id: 16 hexadecimal digits. config: the content of the run's config.json, and in addition `folder`, the
        absolute path of the run's folder, and `step`, the number of steps that are done.
        """

    def log(self, record: dict[str, Any]) -> None:
        """A record of metrics.jsonl, with `repeated`: whether the run had it before it was resumed.

        `kind` is train, test, ranks, checkpoint, or in a job that survives lost ranks, members, shards, audit or
        audited, and `step` the number of steps done. The other values are numbers; lists with a number for each rank,
        and None for one that is not there; text, such as the hash of the weights, `parameters`; or as docs/runs.md
        says.
        """

    def end(self, status: str) -> None:
        """The run has finished, was stopped, or has failed: `finished`, `stopped` or `failed`.

        A run whose process is killed does not call this.
        """


def check(names: Sequence[str]) -> None:
    """Import the trackers of these names. Raises UserError for one that does not exist, or cannot be imported."""
    for name in names:
        load(name)


def load(name: str) -> Callable[[], Tracker]:
    """What makes the tracker of this name. Raises UserError if it does not exist, or cannot be imported."""
    trackers = installed()
    if name not in trackers:
        hint, known = did_you_mean(name, trackers), ", ".join(sorted(trackers))
        raise UserError(f"--tracker {printable(name)}: no such tracker{hint}", f"choose from {known}")
    if name in SILENT:
        os.environ.setdefault(*SILENT[name])
    try:
        made = trackers[name].load()
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}")
        install = f"pip install 'hvdtrain[{name}]'" if name in BUILT_IN else "install what it needs, or leave it out"
        raise UserError(f"--tracker {name}: it cannot be imported ({reason})", install) from None
    if not callable(made):
        raise UserError(f"--tracker {name}: {trackers[name].value} is not a class", "correct its entry point")
    return made


def installed() -> dict[str, EntryPoint]:
    importlib.invalidate_caches()
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    return {**others, **{name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}}


def numbers(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Each number of a record with its name, such as `loss`; of a list of ranks, how many there are.

    Those that a script logged are `logged/NAME`.
    """
    for name, value in record.items():
        if name not in DESCRIBING and is_number(value):
            yield name, float(value)
        elif name in LISTS_OF_RANKS.get(record.get("kind"), ()) and isinstance(value, list | tuple):
            yield name, float(len(value))
        elif name == LOGGED and isinstance(value, dict):
            yield from ((f"{LOGGED}/{figure}", float(number)) for figure, number in value.items() if is_number(number))


def numbers_of_ranks(record: dict[str, Any]) -> Iterator[tuple[str, dict[int, float]]]:
    """Each list of a record that has a number for each rank, or None for one that is not there, with its name, such as
    `compute_s`: the numbers by rank.
    """
    for name, value in record.items():
        if not isinstance(value, list | tuple) or name in LISTS_OF_RANKS.get(record.get("kind"), ()):
            continue
        by_rank = {rank: float(number) for rank, number in enumerate(value) if is_number(number)}
        if by_rank and len(by_rank) == sum(number is not None for number in value):
            yield name, by_rank


def is_number(value: Any) -> bool:
    """Whether a value is a number, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record as `train/loss`; of those of ranks mean and maximum, as `train/compute_s_max`."""
    kind = record["kind"]
    values = {f"{kind}/{name}": value for name, value in numbers(record)}
    for name, of_ranks in numbers_of_ranks(record):
        known = list(of_ranks.values())
        values |= {f"{kind}/{name}_mean": sum(known) / len(known), f"{kind}/{name}_max": max(known)}
    return values
