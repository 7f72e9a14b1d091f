"""What a rank does in a step, from the records of runs."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.mean import shape_of
from hvdtrain.config.compression import AUTO, parse_method
from hvdtrain.config.strategy_names import OVER_HOROVOD
from hvdtrain.errors import UserError
from hvdtrain.measure.scale.algorithms import is_quantity
from hvdtrain.measure.scale.compression import NUMBER_BYTES, Combining, count
from hvdtrain.networks.layers import Shape
from hvdtrain.networks.record import shaped_from_record
from hvdtrain.runs.metrics import NAME, MetricsReader
from hvdtrain.runs.run import Run
from hvdtrain.system.text import printable

BACKWARD_SHARE = 2 / 3
"""Backward computes two products where forward computes one: with respect to inputs, and to weights."""
MIN_INTERVALS = 8
"""Logging intervals, without the first, from which a spread is computed."""

LIBRARY_OF = {"ring": "ring", "mpi": "mpi", "ddp": "gloo", "multiworker": "gloo"}
"""Libraries of strategies over ranks other than Horovod."""


@dataclass(frozen=True)
class Workload:
    """A training job, without its communication."""

    rows: float
    """Images per step of one rank, in the measured job."""
    fixed_s: float
    """Time of a step's computation that does not depend on the number of images."""
    row_s: float
    """Time of computation per image."""
    input_row_s: float
    """Time per image in the loop: selecting and copying batches."""
    gradient_bytes: int
    """As they are computed, in float32."""
    tensors: int
    """Number of gradients: the most messages that a step can be cut into."""
    spread: float
    """Standard deviation of a step's computation, as a share of it."""
    images: float = 0.0
    """Training images of an epoch; 0 if unknown."""
    epochs: float = 0.0
    global_batch: float = 0.0
    """Images per step of all ranks, in the measured job."""
    backward_share: float = BACKWARD_SHARE
    notes: tuple[str, ...] = ()
    """What was assumed."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Of the gradients as matrices (`hvdtrain.collectives.mean.Shapes`); none if only their bytes are known."""

    @property
    def arrays(self) -> tuple[tuple[int, int], ...]:
        """The shapes, or one vector."""
        return self.shapes or ((1, self.gradient_bytes // NUMBER_BYTES),)

    def compute_s(self, rows: float) -> float:
        """Time of a step's computation for `rows` images."""
        return self.fixed_s + self.row_s * rows


class Step(NamedTuple):
    """A run's step, of one rank."""

    run: Run
    rows: float
    compute_s: float
    input_s: float


class Recorded(NamedTuple):
    """What the records of runs tell."""

    workload: Workload
    libraries: set[str]
    """That performed their allreduces, by the names in `inputs.NAMES`; none for one process."""
    combinings: set[Combining]
    """How their ranks combined gradients or weights; none for one process."""


def read_workload(folders: tuple[Path, ...]) -> Recorded:
    """The workload of finished runs of the same network, which differ in images per rank or in machine.

    Of several machines the slowest counts: all ranks get equally many images, and wait for it. Raises UserError for
    folders that cannot be read, or lack what the model needs.
    """
    steps = [_step(_read(folder)) for folder in folders]
    names = {(step.run.options["model"], step.run.options["framework"]) for step in steps}
    if len(names) > 1:
        raise UserError(
            f"the runs are of {len(names)} different networks or frameworks", "give runs that differ only in batch size"
        )
    machines: dict[str, list[Step]] = {}
    for step in steps:
        machines.setdefault(step.run.settings["machine"], []).append(step)
    fits = {machine: _fit(of_one) for machine, of_one in machines.items()}
    slowest = max(fits, key=lambda machine: fits[machine][0] + fits[machine][1] * steps[0].rows)
    fixed_s, row_s = fits[slowest]
    step = max(machines[slowest], key=lambda step: step.rows)
    shapes = tuple(map(shape_of, _parameters(step.run).values()))
    spread, notes = _spread(step.run)
    notes += _notes(machines, slowest, fits)
    workload = Workload(
        rows=step.rows,
        fixed_s=fixed_s,
        row_s=row_s,
        input_row_s=step.input_s / step.rows,
        gradient_bytes=NUMBER_BYTES * count(shapes),
        tensors=len(shapes),
        spread=spread,
        images=(step.run.result.number("epoch_s") or 0) * (step.run.images_per_s or 0),
        epochs=step.run.options["epochs"],
        global_batch=step.run.global_batch,
        notes=tuple(notes),
        shapes=shapes,
    )
    combined = {step.run: name for step in steps if (name := _library(step.run))}
    return Recorded(workload, set(combined.values()), {_combining(run) for run in combined})


def _combining(run: Run) -> Combining:
    """What the run's record says of it. Raises UserError if it is not a method."""
    every = run.options.get("sync_every", 1)
    try:
        method = parse_method(str(run.options["compression"]))
    except UserError:
        method = None
    if method is None or method.name == AUTO or not isinstance(every, int) or every < 1:
        path = printable(str(run.folder / "config.json"))
        raise UserError(f"{path}: no valid compression and sync_every", "repeat the run with this version")
    return Combining(method, every)


def _parameters(run: Run) -> dict[str, Shape]:
    """Names and shapes of the parameters of the run's network. Raises UserError if its record has no valid network."""
    path = run.folder / "config.json"
    try:
        return dict(shaped_from_record(run.config.values.get("network"), run.options["model"]).parameters())
    except (ValueError, UserError, RecursionError) as error:
        reason = error.reason if isinstance(error, UserError) else str(error)
        raise UserError(
            f"{printable(str(path))}: no valid network ({printable(reason):.200})", "repeat the run with this version"
        ) from None


def _library(run: Run) -> str | None:
    """What performs the allreduce of the run's strategy over ranks; None for other strategies."""
    if run.options["strategy"] in OVER_HOROVOD:
        return "horovod-mpi" if run.controller == "MPI" else "horovod-gloo"
    return LIBRARY_OF.get(run.options["strategy"])


def _read(folder: Path) -> Run:
    if not folder.is_dir():
        raise UserError(f"{printable(str(folder))}: no such folder", "give the folder of a finished run")
    return Run(folder).require()


def _step(run: Run) -> Step:
    """Computation and input of a run's step. Raises UserError if its record does not tell them."""
    name = printable(str(run.folder))
    if run.images_per_s is None or not is_quantity(run.images_per_s):
        raise UserError(f"{name}: its result.json has no images_per_s", "repeat the run with more steps")
    seconds = run.global_batch / run.images_per_s
    rows = run.global_batch / run.replicas
    if run.replicas > 1:
        shares = run.shares
        if run.changes.losses or run.changes.joins:
            raise UserError(f"{name}: its ranks changed while it trained", "give a run that kept its ranks")
        if shares is None or shares.communicate is None or len(run.history.ranks) != run.ranks:
            raise UserError(
                f"{name}: {run.replicas} replicas, and its record does not tell how much of a step is communication",
                "give a run of one rank",
            )
        return Step(run, rows, shares.compute * seconds, shares.data * seconds)
    outside = run.result.number("outside_share") or 0.0
    return Step(run, rows, seconds * (1 - outside), seconds * outside)


def _fit(steps: list[Step]) -> tuple[float, float]:
    """Fixed seconds of a step's computation, and seconds per image; of one batch size, nothing is fixed."""
    if len({step.rows for step in steps}) == 1:
        return 0.0, statistics.median(step.compute_s / step.rows for step in steps)
    row_s, fixed_s = np.polyfit([step.rows for step in steps], [step.compute_s for step in steps], 1)
    if fixed_s < 0 or row_s <= 0:
        return 0.0, statistics.median(step.compute_s / step.rows for step in steps)
    return float(fixed_s), float(row_s)


def _spread(run: Run) -> tuple[float, list[str]]:
    """Relative standard deviation of one step, and a note if it is unknown.

    The record has intervals of `log_every` steps. Means of k steps spread by k to the power of -h as much as one step:
    h is 1/2 for independent steps, and 0 for slow changes. It is taken from intervals and pairs of them.
    """
    every = run.config.table("runtime").number("log_every") or 1.0
    records = MetricsReader(run.folder / NAME).read().of_kind("train")
    speeds = [record.get("images_per_s") for record in records][1:]
    seconds = np.array([1 / speed for speed in speeds if isinstance(speed, int | float) and is_quantity(speed)])
    if len(seconds) < MIN_INTERVALS:
        return 0.0, [f"{len(seconds)} logging intervals are too few to know the spread of step times: taken as 0"]
    pairs = seconds[: len(seconds) // 2 * 2].reshape(-1, 2).mean(axis=1)
    deviation, of_pairs = _deviation(seconds), _deviation(pairs)
    h = float(np.clip(math.log2(deviation / of_pairs), 0, 0.5)) if deviation and of_pairs else 0.5
    return deviation / float(np.median(seconds)) * every**h, []


def _deviation(values: np.ndarray) -> float:
    """Half the distance of the 16th and 84th percentiles, which a few interrupted intervals do not change."""
    low, high = np.percentile(values, [16, 84])
    return float(high - low) / 2


def _notes(machines: dict[str, list[Step]], slowest: str, fits: dict[str, tuple[float, float]]) -> list[str]:
    notes = []
    if len(machines) > 1:
        notes.append(f"{len(machines)} kinds of machines: all wait for the slowest, {slowest}")
    if fits[slowest][0] == 0:
        one_size = len({step.rows for step in machines[slowest]}) == 1
        why = "one batch size was measured" if one_size else "larger batches were not faster per image"
        notes.append(f"{why}: the time of computation is taken as proportional to the images of a rank")
    return notes
