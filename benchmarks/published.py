"""The table of docs/scaling.md: published measurements of large jobs, and what the model of scale says of them.

usage: python benchmarks/published.py

This is the test of the model against the world; published.json has the measurements and their sources.
"""

from __future__ import annotations

import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.measure.scale.allreduce import Allreduce, Cluster, Link, Seconds, rabenseifner, ring
from hvdtrain.measure.scale.measured import Workload
from hvdtrain.measure.scale.step import StepModel

OVERLAPS = tuple(number / 20 for number in range(21))
"""Values from which the constant of a system is chosen."""


def nccl(size: int, cluster: Cluster) -> Seconds:
    """Its ring, or its double binary tree (Sanders, Speck and Traff, 2009), which has the terms of Rabenseifner's."""
    return min(ring(size, cluster), rabenseifner(size, cluster), key=sum)


ALGORITHMS = {"ring": ring, "nccl": nccl}


class PublishedRow(NamedTuple):
    """A published measurement and its prediction."""

    system: str
    what: str
    """Network and precision."""
    ranks: int
    published: float
    """Images/s of all ranks, as a share of that many times one rank of the base."""
    predicted: float
    """The same, with the constant of the system."""
    held_out: float
    """The same, with the constant of all other systems: the median of theirs."""
    overlap: float
    """The constant of the system."""

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1

    @property
    def held_out_error(self) -> float:
        return self.held_out / self.published - 1

    @property
    def linear_error(self) -> float:
        """The error of assuming that N ranks are N times as fast as one."""
        return 1 / self.published - 1


@cache
def data() -> dict[str, Any]:
    """Sources, networks, systems and rows: see published.json."""
    return json.loads(Path(__file__).with_name("published.json").read_text())


def published_rows() -> list[PublishedRow]:
    """All rows, each with the constant that fits its system best: the share of communication that backward hides."""
    systems: dict[str, list[dict[str, Any]]] = {}
    for row in data()["rows"]:
        systems.setdefault(row["system"], []).append(row)
    best = {system: min(OVERLAPS, key=lambda one: (_mean_error(rows, one), one)) for system, rows in systems.items()}
    found = []
    for system, rows in systems.items():
        others = statistics.median(value for other, value in best.items() if other != system)
        for row in rows:
            what = f"{row['network']}, {row['precision']}"
            predicted, held_out = _efficiency(row, best[system]), _efficiency(row, others)
            found.append(PublishedRow(system, what, row["ranks"], _published(row), predicted, held_out, best[system]))
    return found


def _mean_error(rows: list[dict[str, Any]], overlap: float) -> float:
    return statistics.fmean(abs(_efficiency(row, overlap) / _published(row) - 1) for row in rows)


def _published(row: dict[str, Any]) -> float:
    if "efficiency" in row:
        return row["efficiency"]
    return row["images_per_s"] / row["ranks"] / (row["base_images_per_s"] / row["base_ranks"])


def _efficiency(row: dict[str, Any], overlap: float) -> float:
    """The predicted efficiency of a row, against its base."""
    system, network = data()["systems"][row["system"]], data()["networks"][row["network"]]
    row_s = row["base_ranks"] / row["base_images_per_s"]
    shapes = ((1, network["parameters"] - network["tensors"] + 1), *((1, 1),) * (network["tensors"] - 1))
    workload = Workload(row["batch"], 0.0, row_s, 0.0, shapes)
    # The systems with a cycle are Horovod's, whose ranks agreed. A gradient waits for half of a cycle on average.
    cycle_s = system["cycle_ms"] * 1e-3
    places = [(system[f"{place}_us"] * 1e-6, 1e-9 / system[f"{place}_gb_s"]) for place in ("network", "local")]
    links = [Link(latency_s, byte_s, cycle_s / 2) for latency_s, byte_s in places]
    allreduce = Allreduce("", ALGORITHMS[system["algorithm"]], agrees=cycle_s > 0, overlap=overlap)
    model = StepModel(workload, allreduce, links[0], links[1], system["ranks_per_host"])
    step = model.step(row["ranks"], row["batch"])
    return step.compute / sum(step)


def main() -> None:
    """Print the table in Markdown, and the median errors."""
    rows = published_rows()
    print("| system | network | ranks | published | predicted | error | held out | linear | overlap |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        figures = f"{row.published:.0%} | {row.predicted:.0%} | {row.error:+.1%} | {row.held_out_error:+.1%}"
        print(f"| {row.system} | {row.what} | {row.ranks} | {figures} | {row.linear_error:+.1%} | {row.overlap:g} |")
    for name in ("error", "held_out_error", "linear_error"):
        print(f"\nMedian of |{name}|: {statistics.median(abs(getattr(row, name)) for row in rows):.1%}")


if __name__ == "__main__":
    main()
