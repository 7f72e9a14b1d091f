"""The CPU cores that a job computes with, and how much arithmetic they can do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from hvdtrain.system import rank_info
from hvdtrain.training.run import Run

SIZE = 1024
"""Rows and columns of the matrices: three take 12 MB, and a product 20 ms at 100 GFLOP/s."""
PRODUCTS = 10


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


def peak_flops(run: Run) -> float | None:
    """Floating-point operations per second of matrix products, of all ranks together; call it on every rank.

    NumPy's product of float32 matrices, on each device of each rank at the same time, with the threads that training
    has: the median of PRODUCTS products, like the speed of training. None if the job trains on GPUs.
    """
    devices = run.learner.devices
    run.group.sum(np.zeros(1))  # all ranks start together, and slow each other down as in training
    own = 0.0
    if run.learner.device == "cpu":
        with ThreadPoolExecutor(devices) as threads:
            own = sum(threads.map(_product_flops, range(devices)))
    total = float(run.group.sum(np.array([own]))[0])
    return total or None


def _product_flops(seed: int) -> float:
    """Operations per second of one device: a multiplication and an addition for each of SIZE^3 terms."""
    a, b = np.random.default_rng(seed).random((2, SIZE, SIZE), np.float32)
    result, seconds = a @ b, []  # the first product starts the threads
    for _ in range(PRODUCTS):
        began = time.perf_counter()
        np.matmul(a, b, out=result)
        seconds.append(time.perf_counter() - began)
    return 2 * SIZE**3 / float(np.median(seconds))
