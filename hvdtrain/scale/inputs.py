"""A job to predict, from the options: runs, tables of allreduces, links given by hand."""

from __future__ import annotations

import dataclasses
import math

from hvdtrain.errors import UserError
from hvdtrain.scale.allreduce_table import AllreduceTable, read_table
from hvdtrain.scale.cluster import Link
from hvdtrain.scale.communication import Communication, Fit, fit
from hvdtrain.scale.failures import Reliability
from hvdtrain.scale.options import ScaleOptions
from hvdtrain.scale.prediction import Job
from hvdtrain.scale.step import StepModel
from hvdtrain.scale.workload import Workload, read_workload

IN_TABLES = {"horovod-gloo": "horovod over Gloo", "horovod-mpi": "horovod over MPI"}
"""Names of libraries in the tables of `bench allreduce`, where they differ."""
OVERLAPPING = ("horovod-gloo", "horovod-mpi", "gloo", "nccl")
"""Libraries whose strategies send gradients while backward computes others."""
DEFAULT_OVERLAP = 0.5
"""Published systems have 0 to 0.85 (docs/scaling.md); predictions range from 0 to 1."""
ALGORITHM_NAMES = {"recursive-doubling": "recursive doubling", "rabenseifner": "Rabenseifner"}


def read_job(options: ScaleOptions) -> tuple[Job, list[str]]:
    """The job, and notes on what was assumed. Raises UserError for files that cannot be used."""
    workload, library = read_workload(options.runs)
    workload = _given(workload, options)
    if options.library != "auto":
        library = options.library
    communication = _communication(options, library)
    overlap = options.overlap
    if overlap is None:
        overlap = DEFAULT_OVERLAP if library in OVERLAPPING else 0.0
    model = StepModel(workload, communication, overlap, options.messages, options.storage_images_per_s or math.inf)
    reliability = Reliability((options.host_mtbf_hours or math.inf) * 3600, options.checkpoint_s, options.restart_s)
    images = (options.images or workload.images) * (options.epochs or workload.epochs)
    job = Job(model, options.scaling, workload.global_batch, reliability, images, options.price_per_host_hour)
    return job, [*workload.notes, *communication.notes, *_size_notes(model)]


def _given(workload: Workload, options: ScaleOptions) -> Workload:
    """The workload, with what options say in place of what was measured."""
    notes = workload.notes
    if options.spread is not None:
        workload = dataclasses.replace(
            workload, spread=options.spread, notes=tuple(note for note in notes if "spread" not in note)
        )
    if options.gradient_mb is not None:
        workload = dataclasses.replace(workload, gradient_bytes=int(options.gradient_mb * 1e6))
    return workload


def rounds_of_call(library: str) -> int:
    """Allreduces of a call: Horovod's ranks agree first on what is ready, by one more."""
    return 2 if library in IN_TABLES else 1


def _communication(options: ScaleOptions, library: str) -> Communication:
    algorithm = ALGORITHM_NAMES.get(options.algorithm, options.algorithm)
    name = library if algorithm == "auto" else algorithm
    rounds, cycle_s = rounds_of_call(library), options.cycle_ms * 1e-3 if library in IN_TABLES else 0.0
    tables = [read_table(path) for path in options.allreduce]
    of_hosts = _fit([table for table in tables if table.hosts > 1], library, cycle_s, rounds)
    of_local = _fit([table for table in tables if table.hosts == 1], library, cycle_s, rounds)
    network = _by_hand(options.latency_us, options.bandwidth_gb_s, cycle_s) or of_hosts
    local = _by_hand(options.local_latency_us, options.local_bandwidth_gb_s, cycle_s) or of_local
    notes = []
    if network is None:
        notes.append("links between hosts are taken to be as fast as those measured in one host")
    network, local = network or local, local or network
    assert network
    assert local
    return Communication(name, network, local, options.ranks_per_host, rounds, notes=tuple(notes))


def _by_hand(latency_us: float | None, bandwidth_gb_s: float | None, cycle_s: float) -> Fit | None:
    if latency_us is None or bandwidth_gb_s is None:
        return None
    # A message is ready at any time of a cycle, so it waits for half of one on average.
    return Fit(Link(latency_us * 1e-6, 1e-9 / bandwidth_gb_s), cycle_s / 2, 0.0)


def _fit(tables: list[AllreduceTable], library: str, cycle_s: float, rounds: int) -> Fit | None:
    """Links fitted to the tables; None without tables. Raises UserError if none has the library."""
    if not tables:
        return None
    measured = [one for table in tables for one in table.libraries.get(IN_TABLES.get(library, library), [])]
    if not measured:
        known = sorted({name for table in tables for name in table.libraries})
        raise UserError(f"--allreduce: the table has no {library}, only {', '.join(known)}", "choose with --library")
    return fit(measured, library, cycle_s, rounds)


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
