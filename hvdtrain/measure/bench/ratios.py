"""Horovod's speed as a share of the fastest other strategy over ranks of the same framework."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from hvdtrain.measure.bench.strategies import BenchJob, BenchRow
from hvdtrain.system.files import read_json
from hvdtrain.views.table import Column, Section, Table, text_column

Speeds = dict[str, dict[int, float]]
"""images/s of each row, by its name and by repeat."""


class Ratio(NamedTuple):
    """Horovod in one framework and with one number of ranks, over Gloo or MPI."""

    horovod: str
    """Its row."""
    fastest: str
    """The row with the largest median of the other strategies over ranks."""
    ranks: int
    ratios: list[float]
    """Of each repeat, in which both jobs ran shortly after one another."""

    def record(self) -> dict[str, Any]:
        return {**self._asdict(), "median": median(self.ratios)}


def ratios(jobs: list[BenchJob], output: Path) -> list[Ratio]:
    """The ratios of those jobs that have finished, from the folder of their runs."""
    found = []
    rows = list(dict.fromkeys(job.row for job in jobs if job.row.over == "ranks"))
    for ranks in sorted({job.replicas for job in jobs if job.replicas > 1}):
        speeds = _speeds([job for job in jobs if job.replicas == ranks], output)
        for row in rows:
            fastest = _fastest_other(row, rows, speeds) if row.strategy == "horovod" and not row.api else None
            if fastest:
                own, other = speeds.get(row.name, {}), speeds[fastest]
                pairs = [own[repeat] / other[repeat] for repeat in sorted(own.keys() & other.keys())]
                found += [Ratio(row.name, fastest, ranks, pairs)] if pairs else []
    return found


def _speeds(jobs: list[BenchJob], output: Path) -> Speeds:
    speeds: Speeds = {}
    for job in jobs:
        path = output / job.name / "result.json"
        if path.is_file():
            speeds.setdefault(job.row.name, {})[job.repeat] = read_json(path)["images_per_s"]
    return speeds


def _fastest_other(horovod: BenchRow, rows: list[BenchRow], speeds: Speeds) -> str | None:
    """Name of the fastest row of another strategy, in any programming style of the same framework."""
    others = [row.name for row in rows if row.framework == horovod.framework and row.strategy != "horovod"]
    return max((name for name in others if name in speeds), key=lambda n: median(speeds[n].values()), default=None)


def table(found: list[Ratio]) -> Table:
    """The ratios as a table."""
    columns = [
        text_column("Horovod"),
        text_column("fastest other strategy over ranks"),
        Column("ranks"),
        Column("ratio of images/s"),
        Column("minimum to maximum, runs", priority=1),
    ]
    rows = [
        [
            *(row.horovod, row.fastest, str(row.ranks), f"{median(row.ratios):.2f}"),
            f"{min(row.ratios):.2f} to {max(row.ratios):.2f}, {len(row.ratios)}",
        ]
        for row in found
    ]
    return Table(columns, [Section(rows)])
