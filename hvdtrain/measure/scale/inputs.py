"""The options of `python -m hvdtrain scale`, and the job to predict: from runs, tables of allreduces, links by hand."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from hvdtrain.config.compression import parse_method
from hvdtrain.config.option import invalid, option, positional
from hvdtrain.config.validity import check_ranges
from hvdtrain.errors import UserError
from hvdtrain.measure.scale.algorithms import LARGEST, SMALLEST, Link, is_quantity
from hvdtrain.measure.scale.communication import AllreduceTable, Communication, Coordination, Fit, fit, read_table
from hvdtrain.measure.scale.compression import NUMBER_BYTES, Combining, packing_s
from hvdtrain.measure.scale.prediction import Job, Reliability
from hvdtrain.measure.scale.step import StepModel
from hvdtrain.measure.scale.without_run import workload_of_model, workload_of_size
from hvdtrain.measure.scale.workload import Recorded, Workload, read_workload

MAX_RANKS = 1 << 20
NETWORK, JOB, COST, COMPRESSION = "network", "job", "failures and cost", "compression"
"""The options' groups in --help."""
LibraryOption = Literal["auto", "horovod-gloo", "horovod-mpi", "gloo", "ring", "mpi", "nccl"]
AlgorithmOption = Literal["auto", "ring", "recursive-doubling", "rabenseifner", "hierarchical"]
NAMES = {
    "horovod-gloo": "Horovod over Gloo",
    "horovod-mpi": "Horovod over MPI",
    "gloo": "Gloo",
    "ring": "hvdtrain's ring",
    "mpi": "MPI",
    "nccl": "NCCL",
}
"""The choices of --library, as sentences name them."""
DEFAULT_OVERLAP = 0.5
"""Published systems have 0 to 0.75 (docs/scaling.md); predictions range from 0 to 1."""
HAND_RANKS = 2
"""Links given by hand are those of a pair, so predictions for more ranks are less certain, as with a table of two."""
MIN_SIZES_RATIO = 64
"""Sizes of a table that are closer together do not tell latency from bandwidth."""
ALGORITHM_NAMES = {"recursive-doubling": "recursive doubling", "rabenseifner": "Rabenseifner"}


@dataclass(frozen=True)
class ScaleOptions:
    """Predict speed, efficiency, time and cost of training on more ranks than were measured."""

    runs: tuple[Path, ...] = positional()
    """Folders of finished runs of one network; several differ in batch size or machine."""
    allreduce: tuple[Path, ...] = option((), NETWORK)
    """Tables of `bench allreduce` (allreduce.json); several of different numbers of ranks fit better."""
    library: LibraryOption = option("auto", NETWORK)
    """Library of the allreduce; auto takes that of the runs' strategy, else Horovod over Gloo."""
    algorithm: AlgorithmOption = option("auto", NETWORK)
    """Algorithm of the allreduce; auto takes what the library uses."""
    latency_us: float | None = option(None, NETWORK, minimum=0)
    """Latency of a message between hosts in microseconds, in place of a table's."""
    bandwidth_gb_s: float | None = option(None, NETWORK, above=0)
    """Bandwidth of a host's network link in GB/s, in each direction, in place of a table's."""
    local_latency_us: float | None = option(None, NETWORK, minimum=0)
    """The same between the ranks of a host; default: as between hosts."""
    local_bandwidth_gb_s: float | None = option(None, NETWORK, above=0)
    """The same between the ranks of a host; default: as between hosts."""
    ranks: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64, 128, 256), JOB)
    """Numbers of ranks to predict."""
    ranks_per_host: int = option(1, JOB, above=0)
    """Ranks of each host."""
    scaling: Literal["weak", "strong"] = option("weak", JOB)
    """weak: each rank has as many images as in the run; strong: the run's global batch is divided."""
    overlap: float | None = option(None, NETWORK, minimum=0, maximum=1)
    """Share of the communication hidden behind backward, of what could be: 0 to 1; default: by library."""
    messages: int = option(0, NETWORK, minimum=0)
    """Messages of a step's gradients; 0 takes the best number."""
    cycle_ms: float = option(0.0, NETWORK, minimum=0)
    """Longest wait of Horovod for its cycle: 0 for the event-driven core, 1 for one as published."""
    gradient_mb: float | None = option(None, NETWORK, above=0)
    """Gradients of a step in MB of 10^6 bytes; default: those of the run's network."""
    spread: float | None = option(None, JOB, minimum=0)
    """Standard deviation of a rank's step time, as a share of it; default: measured in the run."""
    storage_images_per_s: float | None = option(None, JOB, above=0)
    """Images per second that shared storage delivers to all hosts together; default: no limit."""
    host_mtbf_hours: float | None = option(None, COST, above=0)
    """Mean time between failures of a host; default: no failures."""
    checkpoint_s: float = option(1.0, COST, minimum=0)
    """Time to write a checkpoint."""
    restart_s: float = option(60.0, COST, minimum=0)
    """Time from a failure to the next step."""
    epochs: float | None = option(None, JOB, above=0)
    """Passes over the training images; default: those of the run."""
    images: float | None = option(None, JOB, above=0)
    """Training images of an epoch; default: those of the run."""
    price_per_host_hour: float = option(0.0, COST, minimum=0)
    """Price of a host for an hour, in any currency."""
    compare_compression: bool = option(False, COMPRESSION, is_switch=True)
    """Compare methods of --compression and --sync-every on --ranks, also without a run, and say which one to choose."""
    compression: tuple[str, ...] = option((), COMPRESSION)
    """Methods to compare; default: none, fp16 (of Horovod), bf16, int8, powersgd:1, powersgd:2. Or the one to predict;
    default: that of the runs."""
    sync_every: tuple[int, ...] = option((), COMPRESSION, minimum=1)
    """Steps between two syncs to compare; default: 1 and 8. Or the number to predict; default: that of the runs."""
    model: str | None = option(None, COMPRESSION)
    """Without a run: the network, built in, NETWORK.toml or FILE.py:NAME."""
    input_shape: tuple[int, ...] = option((), COMPRESSION, minimum=1)
    """Its images: channels, height, width; default: those that it is made for, else 1 28 28."""
    classes: int = option(10, COMPRESSION, above=0)
    """Its classes."""
    parameters: int | None = option(None, COMPRESSION, above=0)
    """Without a run and --model: number of the network's parameters."""
    compute_ms: float | None = option(None, COMPRESSION, above=0)
    """Time of a step's computation on a rank; default: that of the run, without a run none."""
    output: Path = option(Path("runs/scale"))
    """Folder for scale.md, scale.json and scale.png."""

    def __post_init__(self) -> None:
        self._check_compression()
        if not self.runs and not self.compare_compression:
            raise UserError("no run is given", "give the folder of a finished run, such as runs/NAME")
        if not all(0 < number <= MAX_RANKS for number in self.ranks) or not self.ranks:
            raise UserError("--ranks: invalid numbers", f"give integers from 1 to {MAX_RANKS:,}, such as 1 8 64")
        check_ranges(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and value and not is_quantity(value):
                raise invalid(field.name, value, "no such quantity exists", f"give {SMALLEST:g} to {LARGEST:g}")
        if self.gradient_mb is not None and self.gradient_mb * 1e6 < NUMBER_BYTES:
            raise UserError(
                f"--gradient-mb {self.gradient_mb} is less than one number", f"give {NUMBER_BYTES}e-6 or more"
            )
        for where in ("", "local_"):
            given = [getattr(self, f"{where}{what}") for what in ("latency_us", "bandwidth_gb_s")]
            if given.count(None) == 1:
                prefix = f"--{where.replace('_', '-')}"
                raise UserError(f"only one of {prefix}latency-us and {prefix}bandwidth-gb-s is given", "give both")
        if not self.allreduce and self.latency_us is None:
            raise UserError(
                "nothing tells how fast the network is",
                "give --allreduce FILE (from python -m hvdtrain bench allreduce), or --latency-us and --bandwidth-gb-s",
            )

    def _check_compression(self) -> None:
        """Raise UserError for methods, numbers of steps or networks that nothing can be compared of."""
        for text in self.compression:
            parse_method(text)
        if not self.compare_compression:
            if max(len(self.compression), len(self.sync_every)) > 1:
                raise UserError("several methods are given", "give one, or compare them with --compare-compression")
            return
        networks = [name for name in ("runs", "model", "parameters") if getattr(self, name) not in (None, ())]
        if len(networks) != 1:
            given = " and ".join(networks) or "none of them"
            remedy = "give the folder of a run, --model NAME, or --parameters NUMBER"
            raise UserError(f"--compare-compression needs one network, but is given {given}", remedy)
        if self.ranks == ScaleOptions.ranks:
            raise UserError("--compare-compression needs the number of ranks", "give it, such as --ranks 4")


class Library(NamedTuple):
    """What the model knows of a library."""

    row: str
    """Its name in the tables of `bench allreduce`."""
    algorithm: str
    """A key of `CHOICES`."""
    coordination: Coordination | None = None
    """How ranks agree before each allreduce, which only Horovod's do."""
    overlaps: bool = False
    """Whether its strategies send gradients while backward computes others."""

    @property
    def row_coordination(self) -> Coordination | None:
        """How the ranks agreed before each call that the row measured: with a cycle, the row is one without Horovod."""
        return None if self.coordination and self.coordination.cycle_s else self.coordination


def library(name: str, cycle_s: float = 0.0) -> Library:
    """The library of a name in NAMES. cycle_s: Horovod's cycle; 0 for its event-driven background thread.

    With a cycle, Horovod over Gloo or MPI is modeled as Gloo or MPI itself, with an agreement and half a cycle before
    each call: all of it goes by Gloo's ring then, and times that were measured with a cycle do not tell anything of
    allreduces that are shorter.
    """
    if not name.startswith("horovod"):
        return Library(name, name, overlaps=name in ("gloo", "nccl"))
    base = name.removeprefix("horovod-")
    if cycle_s:
        return Library(base, base, Coordination(base, cycle_s), overlaps=True)
    algorithm, row = ("horovod-gloo", "horovod over Gloo") if base == "gloo" else ("mpi", "horovod over MPI")
    return Library(row, algorithm, Coordination(algorithm), overlaps=True)


def read_job(options: ScaleOptions) -> tuple[Job, list[str]]:
    """The job, and notes on what was assumed. Raises UserError for files that cannot be used."""
    workload, used, combinings = _workload(options)
    workload = _given(workload, options)
    combining = _combining(options, combinings)
    name, notes = _library_name(options, used)
    chosen = library(name, options.cycle_ms * 1e-3)
    if not combining.is_possible(by_horovod=chosen.coordination is not None):
        raise invalid("compression", combining.method, "Horovod's own, for gradients of each step", "use bf16")
    communication = _communication(options, chosen)
    overlap = options.overlap
    if overlap is None:
        overlap = DEFAULT_OVERLAP if chosen.overlaps else 0.0
    model = StepModel(
        workload,
        communication,
        overlap,
        options.messages,
        options.storage_images_per_s or math.inf,
        combining=combining,
        packing_s=functools.partial(packing_s, combining.method, workload.arrays),
    )
    reliability = Reliability((options.host_mtbf_hours or math.inf) * 3600, options.checkpoint_s, options.restart_s)
    images = (options.images or workload.images) * (options.epochs or workload.epochs)
    job = Job(model, options.scaling, workload.global_batch, reliability, images, options.price_per_host_hour)
    return job, [*notes, *workload.notes, *communication.notes, *_size_notes(model)]


def _workload(options: ScaleOptions) -> Recorded:
    """That of the runs, or of the network that options describe."""
    if options.runs:
        return read_workload(options.runs)
    compute_s = (options.compute_ms or 0.0) * 1e-3
    if options.model is None:
        return Recorded(workload_of_size(options.parameters or 1, compute_s), set(), set())
    return Recorded(workload_of_model(options.model, options.input_shape, options.classes, compute_s), set(), set())


def _combining(options: ScaleOptions, used: set[Combining]) -> Combining:
    """What is predicted: the options', else that of the runs. Raises UserError for several."""
    if len(used) > 1 and not options.compare_compression and not (options.compression and options.sync_every):
        raise UserError(
            f"the runs used {' and '.join(sorted(map(str, used)))}", "choose with --compression and --sync-every"
        )
    of_runs = next(iter(used), Combining())
    method = parse_method(options.compression[0]) if options.compression else of_runs.method
    return Combining(method, options.sync_every[0] if options.sync_every else of_runs.sync_every)


def _given(workload: Workload, options: ScaleOptions) -> Workload:
    """The workload, with what options say in place of what was measured."""
    notes = workload.notes
    if options.spread is not None:
        workload = dataclasses.replace(
            workload, spread=options.spread, notes=tuple(note for note in notes if "spread" not in note)
        )
    if options.gradient_mb is not None:
        workload = dataclasses.replace(workload, gradient_bytes=int(options.gradient_mb * 1e6), shapes=())
    if options.compute_ms is not None:
        workload = dataclasses.replace(workload, fixed_s=0.0, row_s=options.compute_ms * 1e-3 / workload.rows)
    return workload


def _library_name(options: ScaleOptions, used: set[str]) -> tuple[str, list[str]]:
    """The library that is predicted, and a note on it. used: those of the runs. Raises UserError for several."""
    if options.library != "auto":
        return options.library, []
    if len(used) > 1:
        raise UserError(f"the runs used {', '.join(NAMES[name] for name in sorted(used))}", "choose one with --library")
    name = next(iter(used), "horovod-gloo")
    how = ", as in the run" if used else ", which the run did not use" if options.runs else ""
    return name, [f"the allreduce is that of {NAMES[name]}{how} (--library)"]


def _communication(options: ScaleOptions, chosen: Library) -> Communication:
    algorithm = ALGORITHM_NAMES.get(options.algorithm, options.algorithm)
    tables = [read_table(path) for path in options.allreduce]
    network = _by_hand(options.latency_us, options.bandwidth_gb_s) or _fit([t for t in tables if t.hosts > 1], chosen)
    in_host = options.local_latency_us, options.local_bandwidth_gb_s
    local = _by_hand(*in_host) or _fit([t for t in tables if t.hosts == 1], chosen)
    notes = []
    if network is None:
        notes.append("links between hosts are taken to be as fast as those measured in one host")
    network, local = network or local, local or network
    assert network
    assert local
    name = chosen.algorithm if algorithm == "auto" else algorithm
    return Communication(name, network, local, options.ranks_per_host, chosen.coordination, notes=tuple(notes))


def _by_hand(latency_us: float | None, bandwidth_gb_s: float | None) -> Fit | None:
    if latency_us is None or bandwidth_gb_s is None:
        return None
    return Fit(Link(latency_us * 1e-6, 1e-9 / bandwidth_gb_s), call_s=0.0, error=0.0, most_ranks=HAND_RANKS)


def _fit(tables: list[AllreduceTable], chosen: Library) -> Fit | None:
    """Links fitted to the tables; None without tables.

    Raises UserError if none has the library, or only sizes that do not tell latency from bandwidth.
    """
    if not tables:
        return None
    measured = [call for table in tables for call in table.libraries.get(chosen.row, [])]
    if not measured:
        known = sorted({name for table in tables for name in table.libraries})
        raise UserError(f"--allreduce: the table has no {chosen.row}, only {', '.join(known)}", "choose with --library")
    sizes = [call.size for call in measured]
    if max(sizes) < MIN_SIZES_RATIO * min(sizes):
        raise UserError(
            f"--allreduce: {chosen.row} was measured with {min(sizes):,} to {max(sizes):,} bytes, which does not tell "
            "latency from bandwidth",
            "measure small and large ones, such as bench allreduce --sizes 8 16384 1048576",
        )
    return fit(measured, chosen.algorithm, chosen.row_coordination)


def _size_notes(model: StepModel) -> list[str]:
    """Says so if gradients are larger or smaller than what was measured."""
    size = model.workload.gradient_bytes
    for measured in {model.communication.network, model.communication.local}:
        if measured.sizes and not measured.sizes[0] <= size <= measured.sizes[-1]:
            return [
                f"the table has allreduces of {measured.sizes[0]:,} to {measured.sizes[-1]:,} bytes, and the gradients "
                f"have {size:,}: extrapolated"
            ]
    return []
