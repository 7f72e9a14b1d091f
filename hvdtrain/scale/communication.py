"""The allreduce of a library: the algorithm's formula, with its constants fitted to measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hvdtrain.scale.algorithms import LIBRARIES, AllreduceTime, allreduce_time, choices_of
from hvdtrain.scale.cluster import Cluster, Link


class Measured(NamedTuple):
    """One allreduce of a table."""

    ranks: int
    size: int
    """Bytes."""
    seconds: float


FIT_ROUNDS = 5
"""The choice of algorithms depends on the link, and the link on the choice."""


@dataclass(frozen=True)
class Fit:
    """A link, fitted to a table."""

    link: Link
    call_s: float
    """Cost of a call that does not depend on the number of ranks."""
    error: float
    """Median of |fitted - measured| / measured."""
    sizes: tuple[int, ...] = ()
    """Sizes of the table, in bytes, ascending."""
    ratios: tuple[float, ...] = ()
    """measured / fitted at each of these sizes."""
    most_ranks: int = 0
    """The most ranks that were measured."""

    def ratio(self, size: int) -> float:
        """measured / fitted at a size, between the measured ones by their logarithms."""
        if not self.sizes:
            return 1.0
        return float(np.exp(np.interp(math.log(size), np.log(self.sizes), np.log(self.ratios))))


def fit(table: list[Measured], library: str, calls_s: float = 0.0, rounds: int = 1) -> Fit:
    """Latency, bandwidth and cost of a call with the least squares of relative errors, none below 0.

    library: a key of LIBRARIES; of those that choose from algorithms, the best one by the fit itself is taken.
    calls_s: a part of each call's time that is known, such as a wait for Horovod's cycle. rounds: allreduces of a
    call, of which one carries the bytes. Rank counts must differ to tell the cost of a call from latency; with one
    rank count, all of it is latency.
    """
    counts = {one.ranks for one in table}
    seconds = np.array([max(one.seconds - calls_s, one.seconds / 100) for one in table])
    link = Link(min(seconds), max(seconds) / max(one.size for one in table))
    for _ in range(FIT_ROUNDS if len(LIBRARIES[library]) > 1 else 1):
        rows = np.array([[*_terms(one, library, link, rounds), len(counts) > 1] for one in table], float)
        latency_s, byte_s, call_s = _least_squares(rows, seconds)
        link = Link(latency_s, byte_s)
    ratios = np.array([one.seconds for one in table]) / (rows @ (latency_s, byte_s, call_s) + calls_s)
    sizes = sorted({one.size for one in table})
    by_size = [
        float(np.median([r for r, one in zip(ratios, table, strict=True) if one.size == size])) for size in sizes
    ]
    error = float(np.median(np.abs(1 / ratios - 1)))
    return Fit(link, call_s + calls_s, error, tuple(sizes), tuple(by_size), max(counts))


def _terms(one: Measured, library: str, link: Link, rounds: int) -> tuple[float, float]:
    """How many latencies a measured allreduce has, and how many bytes it sends over a link one after the other."""

    def time(algorithm: str, of: Link) -> AllreduceTime:
        return allreduce_time(algorithm, one.size, Cluster(one.ranks, 1, of, of))

    used = min(choices_of(library, one.size, one.ranks), key=lambda algorithm: time(algorithm, link).seconds)
    return rounds * time(used, Link(1.0, 0.0)).latency_s, time(used, Link(0.0, 1.0)).transfer_s


def _least_squares(rows: np.ndarray, seconds: np.ndarray) -> tuple[float, float, float]:
    """Coefficients of three columns, none negative: the best fit of those subsets of columns that give none."""
    scaled = rows / seconds[:, None]
    best, least = np.zeros(3), math.inf
    for subset in ((0, 1, 2), (0, 1), (1, 2), (0, 2), (0,), (1,), (2,)):
        columns = [number for number in subset if scaled[:, number].any()]
        solution, *_ = np.linalg.lstsq(scaled[:, columns], np.ones(len(seconds)), rcond=None)
        error = float(np.square(scaled[:, columns] @ solution - 1).sum())
        if (solution >= 0).all() and error < least:
            best, least = np.zeros(3), error
            best[columns] = solution
    return float(best[0]), float(best[1]), float(best[2])


@dataclass(frozen=True)
class Communication:
    """What an allreduce costs over any number of ranks."""

    algorithm: str
    """A key of ALGORITHMS or LIBRARIES."""
    network: Fit
    """Links between hosts."""
    local: Fit
    """Links in a host."""
    ranks_per_host: int = 1
    rounds: int = 1
    """Allreduces of a call: Horovod agrees first on what is ready, by one more of a few bytes."""
    factor: float = 1.0
    """Multiplies all times, for ranges."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was assumed."""

    def cluster(self, ranks: int) -> Cluster:
        return Cluster(ranks, self.ranks_per_host, self.network.link, self.local.link)

    def used(self, ranks: int) -> Fit:
        """The fit of the slowest links in use."""
        return self.network if self.cluster(ranks).hosts > 1 else self.local

    def time(self, size: int, ranks: int) -> AllreduceTime:
        """The time of one allreduce of `size` bytes, without `control_s`."""
        time = allreduce_time(self.algorithm, size, self.cluster(ranks))
        ratio = self.factor * self.used(ranks).ratio(size)
        return AllreduceTime(time.latency_s * ratio, time.transfer_s * ratio)

    def control_s(self, ranks: int) -> float:
        """Time of a call before bytes are sent: its constant cost, and the ranks' agreement on what is ready."""
        if ranks == 1:
            return 0.0
        agreement = allreduce_time(self.algorithm, AGREEMENT_BYTES, self.cluster(ranks))
        return self.factor * (self.used(ranks).call_s + (self.rounds - 1) * agreement.seconds)

    def by(self, algorithm: str) -> Communication:
        """The same links with another algorithm."""
        return replace(self, algorithm=algorithm)


AGREEMENT_BYTES = 64
"""A bit for each gradient, and flags: Horovod's CacheCoordinator."""
