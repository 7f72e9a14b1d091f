"""The allreduce of a library: the algorithm's formula, with its constants fitted to measurements.

The measurements are in the table that `python -m hvdtrain bench allreduce` writes for programs: allreduce.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.measure.scale.algorithms import (
    EXCHANGE,
    AllreduceTime,
    Cluster,
    Link,
    allreduce_time,
    choices_of,
    is_quantity,
)
from hvdtrain.system.files import read_json
from hvdtrain.system.text import printable

REMEDY = "write one with: python -m hvdtrain bench allreduce"
FIT_ROUNDS = 5
"""The choice of algorithms depends on the link, and the link on the choice."""
AGREEMENT_BYTES = 64
"""A bit for each gradient, and flags: Horovod's CacheCoordinator."""
FUSION_BYTES = 128 << 20
"""HOROVOD_FUSION_THRESHOLD: the largest message that Horovod makes of several gradients."""
HOROVOD_EXCHANGE = 4
"""Latencies of an all-to-all by Horovod over Gloo, besides an agreement as of an allreduce, and itself: on links with a
delay of 10 ms each way, 2, 3, 4 and 8 ranks took 61, 62, 70 and 85 ms for 8 bytes to each."""
NO_TIME = AllreduceTime(0.0, 0.0)


class Measured(NamedTuple):
    """One allreduce of a table."""

    ranks: int
    size: int
    """Bytes."""
    seconds: float


class AllreduceTable(NamedTuple):
    """Measured allreduces of several libraries over the ranks of one job."""

    ranks: int
    hosts: int
    libraries: dict[str, list[Measured]]


def to_table(ranks: int, hosts: int, seconds: Mapping[str, Sequence[Mapping[int, float]]]) -> dict[str, Any]:
    """The content of a file. seconds: for each library, repeats of seconds by number of bytes."""
    rows = []
    for library, repeats in seconds.items():
        for size in sorted(repeats[0]) if repeats else ():
            runs = [repeat[size] for repeat in repeats]
            rows.append({"library": library, "bytes": size, "seconds": median(runs), "runs": runs})
    return {"ranks": ranks, "hosts": hosts, "rows": rows}


def read_table(path: Path) -> AllreduceTable:
    """The table in a file. Raises UserError, naming the file, for content that `to_table` does not make."""
    name = printable(str(path))
    try:
        value = read_json(path)
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})", REMEDY) from None
    except (ValueError, RecursionError):
        raise UserError(f"{name}: not JSON", REMEDY) from None
    try:
        ranks, hosts = _count(value["ranks"]), _count(value["hosts"])
        libraries: dict[str, list[Measured]] = {}
        for row in value["rows"]:
            times = [Measured(ranks, _count(row["bytes"]), _seconds(run)) for run in row["runs"]]
            libraries.setdefault(str(row["library"]), []).extend(times)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{name}: not a table of allreduces ({type(error).__name__}: {error})", REMEDY) from None
    if ranks < 2 or hosts > ranks or not any(libraries.values()):
        raise UserError(f"{name}: a table of {ranks} rank(s) on {hosts} host(s) has no allreduce", REMEDY)
    if 1 < hosts < ranks:
        raise UserError(
            f"{name}: a table of {ranks} ranks on {hosts} hosts", "measure the ranks of one host, or one on each"
        )
    return AllreduceTable(ranks, hosts, libraries)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
        raise ValueError(f"{value!r:.40} is not a positive integer")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_quantity(value):
        raise ValueError(f"{value!r:.40} is not a time in seconds")
    return float(value)


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


@dataclass(frozen=True)
class Coordination:
    """How Horovod's ranks agree on what is ready, before each allreduce: by another one, of a few bytes."""

    algorithm: str
    """A key of CHOICES."""
    cycle_s: float = 0.0
    """The background thread looks for work once in a cycle; 0 if it starts at once."""

    @property
    def wait_s(self) -> float:
        """A gradient becomes ready at any time of a cycle, so it waits for half of one on average."""
        return self.cycle_s / 2

    def time(self, cluster: Cluster) -> AllreduceTime:
        """The time of the agreement."""
        return allreduce_time(self.algorithm, AGREEMENT_BYTES, cluster)


def fit(table: list[Measured], algorithm: str, coordination: Coordination | None = None) -> Fit:
    """Latency, bandwidth and cost of a call with the least squares of relative errors, none below 0.

    algorithm: a key of CHOICES; the best one by the fit itself is taken. coordination: of the measured calls,
    without a cycle. Rank counts must differ to tell the cost of a call from latency; with one, all of it is latency.
    """
    counts = {call.ranks for call in table}
    seconds = np.array([call.seconds for call in table])
    link = Link(min(seconds), max(seconds) / max(call.size for call in table))
    for _ in range(FIT_ROUNDS):
        rows = np.array([[*_terms(call, algorithm, coordination, link), len(counts) > 1] for call in table], float)
        latency_s, byte_s, call_s = _least_squares(rows, seconds)
        link = Link(latency_s, byte_s)
    fitted = Fit(link, call_s, error=0.0)
    model = Communication(algorithm, fitted, fitted, coordination=coordination)
    ratios = seconds / [sum(model.call(call.size, call.ranks)) for call in table]
    sizes = sorted({call.size for call in table})
    by_size = [
        float(np.median([r for r, call in zip(ratios, table, strict=True) if call.size == size])) for size in sizes
    ]
    error = float(np.median(np.abs(1 / ratios - 1)))
    return Fit(link, call_s, error, tuple(sizes), tuple(by_size), max(counts))


def _terms(call: Measured, algorithm: str, coordination: Coordination | None, link: Link) -> tuple[float, float]:
    """How many latencies a measured call has, and how many bytes it sends over a link one after the other."""
    of_fit, of_latency, of_bytes = (
        Cluster(call.ranks, 1, every, every) for every in (link, Link(1.0, 0.0), Link(0.0, 1.0))
    )
    agreement = [(coordination.algorithm, AGREEMENT_BYTES)] if coordination else []
    latencies = sent_bytes = 0.0
    for name, size in [(algorithm, call.size), *agreement]:
        times = {used: allreduce_time(used, size, of_fit).seconds for used in choices_of(name, size, call.ranks)}
        used = min(times, key=times.__getitem__)
        latencies += allreduce_time(used, size, of_latency).latency_s
        sent_bytes += allreduce_time(used, size, of_bytes).transfer_s
    return latencies, sent_bytes


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


class CallTime(NamedTuple):
    """Seconds of an allreduce, by what takes them."""

    control: float
    """Before bytes are sent: the cost of a call, the wait for a cycle, and the ranks' agreement on what is ready."""
    latency: float
    transfer: float


@dataclass(frozen=True)
class Communication:
    """What an allreduce costs over any number of ranks."""

    algorithm: str
    """A key of ALGORITHMS or CHOICES."""
    network: Fit
    """Links between hosts."""
    local: Fit
    """Links in a host."""
    ranks_per_host: int = 1
    coordination: Coordination | None = None
    """None where ranks need not agree on what is ready."""
    factor: float = 1.0
    """Multiplies all times but the wait for a cycle, for ranges."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was assumed."""

    @property
    def message_bytes(self) -> float:
        """The largest message: Horovod sends no larger one, other libraries what they are given."""
        return FUSION_BYTES if self.coordination else math.inf

    def cluster(self, ranks: int) -> Cluster:
        return Cluster(ranks, self.ranks_per_host, self.network.link, self.local.link)

    def used(self, ranks: int) -> Fit:
        """The fit of the slowest links in use."""
        cluster = self.cluster(ranks)
        local_is_slower = cluster.local_ranks > 1 and self.local.link.byte_s > self.network.link.byte_s
        return self.local if cluster.hosts == 1 or local_is_slower else self.network

    def call(self, size: int, ranks: int, packed: bool = False) -> CallTime:
        """The time of one allreduce of `size` bytes; one rank needs none.

        packed: of compressed values. hvdtrain's ring adds them at each of its hops; in others, ranks exchange parts.
        """
        if ranks == 1:
            return CallTime(0.0, 0.0, 0.0)
        if packed and (self.coordination or self.algorithm != "ring"):
            return self._exchange(size, ranks)
        return self._allreduce(self.algorithm, size, ranks)

    def _exchange(self, size: int, ranks: int) -> CallTime:
        """Two all-to-alls, before each of which Horovod's ranks also agree on what they are to send."""
        control, latency, transfer = self._allreduce(EXCHANGE, size, ranks)
        more = HOROVOD_EXCHANGE if self.coordination else 0
        more_s = self.factor * more * self.cluster(ranks).slowest.latency_s
        return CallTime(2 * (control + more_s), latency, transfer)

    def _allreduce(self, algorithm: str, size: int, ranks: int) -> CallTime:
        cluster, fit = self.cluster(ranks), self.used(ranks)
        sent = allreduce_time(algorithm, size, cluster)
        agreed = self.coordination.time(cluster) if self.coordination else NO_TIME
        ratio = self.factor * fit.ratio(size)
        wait_s = self.coordination.wait_s if self.coordination else 0.0
        control_s = ratio * (fit.call_s + agreed.seconds) + wait_s
        return CallTime(control_s, ratio * sent.latency_s, ratio * sent.transfer_s)

    def by(self, algorithm: str) -> Communication:
        """The same links with another algorithm: hvdtrain's ring, Horovod over MPI, or Horovod's hierarchical one."""
        coordination = self.coordination
        if algorithm == "ring":
            coordination = None
        elif algorithm == "mpi" and coordination:
            coordination = replace(coordination, algorithm="mpi")
        return replace(self, algorithm=algorithm, coordination=coordination)
