"""What was measured of allreduces, in tables.

The bandwidths are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md there): algorithm bandwidth = bytes / seconds, and
bus bandwidth = algorithm bandwidth * 2 (n - 1) / n, the least that each link must carry with n ranks, so that results
for different numbers of ranks can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from hvdtrain.views.table import Column, Section, Table, spread, text_column

COMPARED = (("ring", "gloo"), ("mpi", "mpi by hand"))
"""hvdtrain's own, and what it is compared with."""
COMPARED_BYTES = (1 << 20, 64 << 20)


class Measured(NamedTuple):
    """One job's result."""

    seconds: dict[int, float]
    """Of an allreduce, by number of bytes."""
    idle: list[float]
    """CPU seconds per second of each rank that has started the library and does nothing else."""
    core_round_trips: list[float] = []  # noqa: RUF012  (a NamedTuple's default is never written to)
    """Seconds of `round_trip_s` before and after the job, those that could be measured."""


Repeats = dict[str, list[Measured]]
"""The jobs of each library."""


def tables(repeats: Repeats, ranks: int, sizes: Sequence[int], idle: bool) -> list[Table]:
    """All tables that have rows. idle: whether ranks were measured that do nothing."""
    found = [
        _times(repeats, ranks, sizes),
        _cores(repeats),
        _idle(repeats if idle else {}),
        _comparison(repeats, sizes),
    ]
    return [table for table in found if table.sections[0].rows]


def has_own_thread(library: str) -> bool:
    """Whether a thread of the library works while its rank is idle: Horovod's does."""
    return library.startswith("horovod")


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """GB/s that each link carries (nccl-tests)."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def _times(repeats: Repeats, ranks: int, sizes: Sequence[int]) -> Table:
    """Median time and bandwidths of each library at each size."""
    runs = len(next(iter(repeats.values())))
    columns = [
        *(Column("bytes"), text_column("library"), Column("time, us")),
        *(Column("minimum to maximum", priority=1), Column("algorithm bandwidth, GB/s", priority=3)),
        Column("bus bandwidth, GB/s", priority=2),
    ]
    rows = []
    for size in sizes:
        for name, jobs in repeats.items():
            times = [job.seconds[size] for job in jobs]
            seconds = median(times)
            span = f"{min(times) * 1e6:,.1f} to {max(times) * 1e6:,.1f}"
            bandwidths = (size / seconds / 1e9, bus_bandwidth(size, seconds, ranks))
            figures = (f"{seconds * 1e6:,.1f}", span, *(f"{one:.3f}" for one in bandwidths))
            rows.append([f"{size:,}", name, *figures])
    caption = f"Allreduce of float32 over {ranks} processes on one machine; median of {runs} runs."
    return Table(columns, [Section(rows)], caption=caption)


def _cores(repeats: Repeats) -> Table:
    """How far apart two cores were around the jobs of each library."""
    trips = {name: [1e9 * trip for job in jobs for trip in job.core_round_trips] for name, jobs in repeats.items()}
    rows = [[name, spread(measured, ",.0f")] for name, measured in trips.items() if measured]
    caption = (
        "Round trip of a value between two cores, before and after each job. Where it changes, the host of a virtual "
        "machine has moved its cores, and an allreduce through shared memory takes longer or shorter."
    )
    columns = [text_column("library"), Column("time, ns (minimum to maximum)")]
    return Table(columns, [Section(rows)], caption=caption)


def _idle(repeats: Repeats) -> Table:
    """What ranks cost that have started Horovod and do nothing else."""
    rows = [
        [name, *(spread([choose(job.idle) for job in jobs], ".1%") for choose in (min, max))]
        for name, jobs in repeats.items()
        if has_own_thread(name)
    ]
    caption = "CPU time that a rank takes after `hvd.init()` and nothing else, in % of a core, of all its threads."
    columns = [
        text_column("library"),
        Column("idlest rank (minimum to maximum)", priority=1),
        Column("busiest rank (minimum to maximum)"),
    ]
    return Table(columns, [Section(rows)], caption=caption)


def _comparison(repeats: Repeats, sizes: Sequence[int]) -> Table:
    """Ratios of hvdtrain's bus bandwidth to the library's, run by run."""
    rows = []
    for ours, theirs in COMPARED:
        for size in sorted(set(COMPARED_BYTES) & set(sizes)):
            pairs = zip(repeats.get(ours, ()), repeats.get(theirs, ()), strict=False)
            ratios = [other.seconds[size] / own.seconds[size] for own, other in pairs]
            if ratios:
                rows.append([f"{ours} / {theirs}", f"{size:,}", spread(ratios, ".2f")])
    columns = [text_column("bus bandwidth"), Column("bytes"), Column("ratio (minimum to maximum)")]
    return Table(columns, [Section(rows)])
