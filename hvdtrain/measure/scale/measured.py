"""Measured steps of a rank, by records of runs, and allreduces, by `benchmarks/allreduce.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from hvdtrain.collectives.mean import shape_of
from hvdtrain.config.forms import NONE
from hvdtrain.errors import UserError
from hvdtrain.interfaces.combining import Shapes
from hvdtrain.measure.scale.allreduce import STRATEGIES, Allreduce, Cluster, Link
from hvdtrain.networks.record import shaped_from_record
from hvdtrain.runs.metrics import NAME, MetricsReader
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.files import Damaged, read_record
from hvdtrain.system.text import printable

SMALLEST, LARGEST = 1e-9, 1e15
"""Of times, rates and other quantities, in any unit: products and quotients of a few of them are finite."""
MIN_INTERVALS = 8
"""Logging intervals, without the first, from which a spread is computed."""
FIT_ROUNDS = 5
"""MPI's choice of an algorithm depends on the link, and the link on the choice."""
MIN_SIZES_RATIO = 64
"""Sizes of a table that are closer together do not tell latency from bandwidth."""
Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]


def is_quantity(value: float) -> bool:
    """Whether a positive number may be a quantity that was measured, or is asked for."""
    return SMALLEST <= value <= LARGEST


@dataclass(frozen=True)
class Workload:
    """What a rank does in a step: it computes for fixed_s and for row_s a row, whose input takes input_row_s."""

    rows: float
    """Of a step of one rank, in the measured job."""
    fixed_s: float
    row_s: float
    input_row_s: float
    shapes: Shapes
    """Of the gradients as matrices."""
    spread: float = 0.0
    """Standard deviation of a step's computation, as a share of it."""
    global_batch: float = 0.0
    """Rows of a step of all ranks, in the measured job."""
    strategy: str = ""
    """A key of STRATEGIES; empty if no run has one."""
    compression: str = NONE
    sync_every: int = 1
    notes: tuple[str, ...] = ()
    """What was assumed."""


def read_runs(folders: Sequence[Path]) -> Workload:
    """What finished runs tell that differ in batch size or ranks only.

    Raises UserError for folders that cannot be read, or lack what the model needs.
    """
    runs = [RecordedRun(folder).require() for folder in folders]
    places = {(run.options["model"], run.options["framework"], run.settings["machine"]) for run in runs}
    ways = {way for run in runs if (way := _way(run))[0]}
    for found, names in ((places, "network, framework or machine"), (ways, "strategy, compression or sync_every")):
        if len(found) > 1:
            raise UserError(f"the runs differ in {names}", "give those that agree")
    compute_s, input_s = np.array([_time(run) for run in runs]).T
    rows = [run.result.global_batch / run.replicas for run in runs]
    largest = rows.index(max(rows))
    # Of one batch size, nothing is fixed.
    row_s, fixed_s = np.polyfit(rows, compute_s, 1).tolist() if len(set(rows)) > 1 else (0.0, 0.0)
    if fixed_s < 0 or row_s <= 0:
        row_s, fixed_s = float(np.median(compute_s / rows)), 0.0
    input_row_s = float(input_s[largest]) / rows[largest]
    shapes, spread, batch = _shapes(runs[largest]), _spread(runs[largest]), runs[largest].result.global_batch
    notes = ["the time of computation is proportional to the images of a rank"] * (not fixed_s)
    notes += ["all steps take equally long: the run has too few logging intervals to tell"] * (spread is None)
    way = next(iter(ways), ("", NONE, 1))
    return Workload(rows[largest], fixed_s, row_s, input_row_s, shapes, spread or 0.0, batch, *way, tuple(notes))


def _way(run: RecordedRun) -> tuple[str, str, int]:
    """How ranks combine gradients: strategy, compression and sync_every."""
    strategy, method, every = (run.options[name] for name in ("strategy", "compression", "sync_every"))
    by_mpi = " over MPI" if strategy == "horovod" and run.config.controller == "MPI" else ""
    return (f"{strategy}{by_mpi}" if strategy in STRATEGIES else "", method, max(every, 1))


def _time(run: RecordedRun) -> tuple[float, float]:
    """Seconds of a step's computation and of its input. Raises UserError if the run's record does not tell them."""
    name = printable(str(run.folder))
    if run.images_per_s is None or not is_quantity(run.images_per_s):
        raise UserError(f"{name}: its result.json has no images_per_s", "repeat the run with more steps")
    seconds = run.result.global_batch / run.images_per_s
    if run.replicas == 1:
        outside = run.result.outside_share or 0.0
        return seconds * (1 - outside), seconds * outside
    shares = None if run.changes.losses or run.changes.joins else run.shares
    if shares is None or shares.communicate is None or len(run.rank_times) != run.config.ranks:
        raise UserError(
            f"{name}: {run.replicas} replicas, and its record does not tell how much of a step is communication",
            "give a run of one rank",
        )
    return shares.compute * seconds, shares.data * seconds


def _shapes(run: RecordedRun) -> Shapes:
    """Of the parameters of the run's network. Raises UserError if its record has no valid network."""
    try:
        network = shaped_from_record(run.config.network, run.options["model"])
    except (ValueError, UserError, RecursionError):
        where = printable(str(run.folder / "config.json"))
        raise UserError(f"{where}: no valid network", "repeat the run with this version") from None
    return tuple(shape_of(shape) for _, shape in network.parameters())


def _spread(run: RecordedRun) -> float | None:
    """Relative standard deviation of one step; None if it is unknown.

    The record has intervals of `log_every` steps. Means of k steps spread by k to the power of -h as much as one step:
    h is 1/2 for independent steps, and 0 for slow changes. It is taken from intervals and pairs of them.
    """
    every = run.config.count("log_every") or 1
    records = MetricsReader(run.folder / NAME).read().of_kind("train")
    speeds = [record.get("images_per_s") for record in records][1:]
    seconds = np.array([1 / speed for speed in speeds if isinstance(speed, int | float) and is_quantity(speed)])
    if len(seconds) < MIN_INTERVALS:
        return None
    pairs = seconds[: len(seconds) // 2 * 2].reshape(-1, 2).mean(axis=1)
    # Half the distance of the 16th and 84th percentiles, which a few interrupted intervals do not change.
    deviation, of_pairs = (float(np.subtract(*np.percentile(values, [84, 16]))) / 2 for values in (seconds, pairs))
    h = float(np.clip(math.log2(deviation / of_pairs), 0, 0.5)) if deviation and of_pairs else 0.5
    return deviation / float(np.median(seconds)) * every**h


class TableRow(msgspec.Struct):
    library: str
    bytes: Count
    runs: list[Annotated[float, msgspec.Meta(ge=SMALLEST, le=LARGEST)]]


class AllreduceTable(msgspec.Struct):
    """Measured allreduces of several libraries over the ranks of one job: the content of allreduce.json."""

    ranks: Annotated[int, msgspec.Meta(ge=2, lt=1 << 40)]
    hosts: Count
    rows: list[TableRow]

    def __post_init__(self) -> None:
        if self.hosts not in (1, self.ranks):
            raise ValueError(f"{self.ranks} ranks on {self.hosts} hosts, neither all on one nor one on each")


def read_table(path: Path) -> AllreduceTable:
    """The table in a file. Raises UserError, naming the file, for what `benchmarks/allreduce.py` does not write."""
    try:
        return read_record(path, AllreduceTable)
    except Damaged as error:
        raise UserError(str(error), "write one with: python benchmarks/allreduce.py") from None


def fit_tables(tables: Sequence[AllreduceTable], allreduce: Allreduce) -> Link | None:
    """The link between the tables' ranks; None without tables.

    Raises UserError if none has the library, or only sizes that do not tell latency from bandwidth.
    """
    own = [(table.ranks, row) for table in tables for row in table.rows if row.library == allreduce.library]
    calls = [(ranks, row.bytes, seconds) for ranks, row in own for seconds in row.runs]
    sizes = [size for _, size, _ in calls]
    if tables and (not calls or max(sizes) < MIN_SIZES_RATIO * min(sizes)):
        raise UserError(
            f"--allreduce: no small and large allreduces by {allreduce.library}, which tell latency from bandwidth",
            "run: python benchmarks/allreduce.py --sizes 8 16384 1048576; or give a run of another --strategy",
        )
    return fit(calls, allreduce) if calls else None


def fit(calls: Sequence[tuple[int, int, float]], allreduce: Allreduce) -> Link:
    """Latency, bandwidth and cost of a call with the least squares of relative errors, none below 0.

    calls: ranks, bytes and seconds of each. Numbers of ranks must differ to tell the cost of a call from latency; with
    one, all of it is latency.
    """
    ranks, sizes, seconds = map(np.array, zip(*calls, strict=True))
    link = Link(seconds.min(), seconds.max() / sizes.max())
    for _ in range(FIT_ROUNDS):
        terms = [[*_terms(p, size, allreduce, link), np.ptp(ranks) > 0] for p, size, _ in calls]
        latency_s, byte_s, call_s = _coefficients(np.divide(terms, seconds[:, None]))
        link = Link(latency_s, byte_s, call_s)
    ratios = seconds / [allreduce.seconds(size, Cluster(p, 1, link, link)) for p, size, _ in calls]
    known = np.unique(sizes)
    medians = [float(np.median(ratios[sizes == size])) for size in known]
    return Link(latency_s, byte_s, call_s, tuple(known.tolist()), tuple(medians))


def _terms(ranks: int, size: int, allreduce: Allreduce, link: Link) -> tuple[float, float]:
    """How many latencies a call has, and how many bytes it sends over a link one after the other."""
    link = Link(link.latency_s or SMALLEST, link.byte_s or SMALLEST**2)
    cluster = Cluster(ranks, 1, link, link)
    latency_s, transfer_s = np.add(allreduce.algorithm(size, cluster), allreduce.agreement(cluster))
    return latency_s / link.latency_s, transfer_s / link.byte_s


def _coefficients(terms: np.ndarray) -> np.ndarray:
    """Factors of the columns, none negative, with which the columns add up to about 1 in each row."""
    factors, columns = np.zeros(terms.shape[1]), np.flatnonzero(terms.any(axis=0))
    while (found := np.linalg.lstsq(terms[:, columns], np.ones(len(terms)), rcond=None)[0]).min() < 0:
        columns = columns[found >= 0]
    factors[columns] = found
    return factors
