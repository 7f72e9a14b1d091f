"""A job to predict, from the options: runs, tables of allreduces, links given by hand."""

from __future__ import annotations

import dataclasses
import math

from hvdtrain.errors import UserError
from hvdtrain.measure.scale.allreduce_table import AllreduceTable, read_table
from hvdtrain.measure.scale.cluster import Link
from hvdtrain.measure.scale.communication import Communication, Fit, fit
from hvdtrain.measure.scale.failures import Reliability
from hvdtrain.measure.scale.libraries import NAMES, Library, library
from hvdtrain.measure.scale.options import ScaleOptions
from hvdtrain.measure.scale.prediction import Job
from hvdtrain.measure.scale.step import StepModel
from hvdtrain.measure.scale.workload import Workload, read_workload

DEFAULT_OVERLAP = 0.5
"""Published systems have 0 to 0.75 (docs/scaling.md); predictions range from 0 to 1."""
HAND_RANKS = 2
"""Links given by hand are those of a pair, so predictions for more ranks are less certain, as with a table of two."""
LEAST_SIZES_RATIO = 64
"""Sizes of a table that are closer together do not tell latency from bandwidth."""
ALGORITHM_NAMES = {"recursive-doubling": "recursive doubling", "rabenseifner": "Rabenseifner"}


def read_job(options: ScaleOptions) -> tuple[Job, list[str]]:
    """The job, and notes on what was assumed. Raises UserError for files that cannot be used."""
    workload, used = read_workload(options.runs)
    workload = _given(workload, options)
    name, notes = _library_name(options, used)
    chosen = library(name, options.cycle_ms * 1e-3)
    communication = _communication(options, chosen)
    overlap = options.overlap
    if overlap is None:
        overlap = DEFAULT_OVERLAP if chosen.overlaps else 0.0
    model = StepModel(workload, communication, overlap, options.messages, options.storage_images_per_s or math.inf)
    reliability = Reliability((options.host_mtbf_hours or math.inf) * 3600, options.checkpoint_s, options.restart_s)
    images = (options.images or workload.images) * (options.epochs or workload.epochs)
    job = Job(model, options.scaling, workload.global_batch, reliability, images, options.price_per_host_hour)
    return job, [*notes, *workload.notes, *communication.notes, *_size_notes(model)]


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


def _library_name(options: ScaleOptions, used: set[str]) -> tuple[str, list[str]]:
    """The library that is predicted, and a note on it. used: those of the runs. Raises UserError for several."""
    if options.library != "auto":
        return options.library, []
    if len(used) > 1:
        raise UserError(f"the runs used {', '.join(NAMES[name] for name in sorted(used))}", "choose one with --library")
    name = next(iter(used), "horovod-gloo")
    how = "as in the run" if used else "which the run did not use"
    return name, [f"the allreduce is that of {NAMES[name]}, {how} (--library)"]


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
    measured = [one for table in tables for one in table.libraries.get(chosen.row, [])]
    if not measured:
        known = sorted({name for table in tables for name in table.libraries})
        raise UserError(f"--allreduce: the table has no {chosen.row}, only {', '.join(known)}", "choose with --library")
    sizes = [one.size for one in measured]
    if max(sizes) < LEAST_SIZES_RATIO * min(sizes):
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
