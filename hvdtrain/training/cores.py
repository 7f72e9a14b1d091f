"""The CPU cores that a job computes with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from hvdtrain.system import rank_info
from hvdtrain.training.run import Run


class RankCores(NamedTuple):
    """What a rank computes with."""

    host: str
    threads: int
    """Threads of all its devices."""
    cores: frozenset[int]
    """Numbers of the cores that it may use."""


def count_cores(run: Run) -> int | None:
    """Cores that the job computes with; call it on every rank. None if it trains on GPUs."""
    cores = frozenset(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS", "")
    of_device = int(threads) if threads.isdecimal() and int(threads) else len(cores)
    own = [rank_info.host_name(), of_device * run.learner.devices, sorted(cores)]
    ranks = [RankCores(host, threads, frozenset(numbers)) for host, threads, numbers in run.group.gather(own)]
    return total_cores(ranks) if run.learner.device == "cpu" else None


def total_cores(ranks: Iterable[RankCores]) -> int:
    """Threads of all ranks, but no more than the cores of each host that its ranks may use."""
    hosts: dict[str, list[RankCores]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    return sum(
        min(sum(rank.threads for rank in own), len(frozenset().union(*(rank.cores for rank in own))))
        for own in hosts.values()
    )
