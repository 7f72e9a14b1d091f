"""The seconds of an allreduce, by library. docs/scaling.md has the formulas, for hosts with one rank each.

They are those of Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA
19(1), 2005; for the ring of Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms ..., JPDC 69(2), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

AGREEMENT_BYTES = 64
"""A bit for each gradient, and flags: Horovod's CacheCoordinator."""
SMALL_BYTES_OF_TWO, SMALL_BYTES = 4 << 20, 128 << 10
"""Of Horovod over Gloo, with two ranks and with more: GlooSmallAllreduce in setup/horovod/."""


@dataclass(frozen=True)
class Link:
    """A connection between two ranks: n bytes take latency + n / bandwidth, in each direction (Hockney's model)."""

    latency_s: float
    byte_s: float
    call_s: float = 0.0
    """Cost of a call that does not depend on the number of ranks."""
    sizes: tuple[int, ...] = ()
    ratios: tuple[float, ...] = ()
    """Measured seconds / those of the formulas, at ascending sizes in bytes."""

    def ratio(self, size: int) -> float:
        """The ratio at a size, between the measured ones by their logarithms."""
        return float(np.exp(np.interp(math.log(size), np.log(self.sizes), np.log(self.ratios)))) if self.sizes else 1.0


@dataclass(frozen=True)
class Cluster:
    """Ranks on hosts of equal size, numbered host by host, so that neighbors share a host if they can."""

    ranks: int
    ranks_per_host: int
    network: Link
    """Between hosts, shared by all ranks of a host."""
    local: Link

    @property
    def hosts(self) -> int:
        return math.ceil(self.ranks / self.ranks_per_host)

    @property
    def local_ranks(self) -> int:
        """Ranks of the fullest host."""
        return min(self.ranks, self.ranks_per_host)

    @property
    def slowest(self) -> Link:
        """The link that limits whatever uses all links at the same time; a host's own may be the slowest."""
        if self.hosts == 1 or self.local_ranks == 1:
            return self.local if self.hosts == 1 else self.network
        slower = max(self.network, self.local, key=lambda link: link.byte_s)
        return replace(slower, latency_s=max(self.network.latency_s, self.local.latency_s))


Seconds = tuple[float, float]
"""Of an allreduce: of its messages' latency, and of their bytes."""


def ring(size: int, cluster: Cluster) -> Seconds:
    """A part of the array travels around the ring twice; one hop in `ranks_per_host` is between hosts, as in NCCL."""
    p, network_hops = cluster.ranks, cluster.hosts if cluster.hosts > 1 else 0
    round_s = network_hops * cluster.network.latency_s + (p - network_hops) * cluster.local.latency_s
    return 2 * (p - 1) / p * round_s, 2 * (p - 1) / p * size * cluster.slowest.byte_s


def recursive_doubling(size: int, cluster: Cluster) -> Seconds:
    """lg p exchanges of the whole array; all ranks of a host share its network link in those between hosts."""
    rounds, local_rounds = _rounds(cluster)
    latency_s = rounds * cluster.network.latency_s + local_rounds * cluster.local.latency_s
    byte_s = rounds * cluster.local_ranks * cluster.network.byte_s + local_rounds * cluster.local.byte_s
    return _with_surplus((latency_s, size * byte_s), size, cluster)


def rabenseifner(size: int, cluster: Cluster) -> Seconds:
    """Reduce-scatter by recursive halving, first between the ranks of a host; allgather by recursive doubling."""
    rounds, local_rounds = _rounds(cluster)
    latency_s = 2 * (rounds * cluster.network.latency_s + local_rounds * cluster.local.latency_s)
    local_s = (1 - 1 / cluster.local_ranks) * cluster.local.byte_s
    network_s = (1 - 1 / cluster.hosts) * cluster.network.byte_s
    return _with_surplus((latency_s, 2 * size * (local_s + network_s)), size, cluster)


def _rounds(cluster: Cluster) -> tuple[int, int]:
    """Rounds of a recursive algorithm between hosts, and within them; lg p in total, rounded down."""
    rounds = int(math.log2(cluster.ranks))
    network_rounds = min(rounds, math.ceil(math.log2(cluster.hosts)))
    return network_rounds, rounds - network_rounds


def _with_surplus(time: Seconds, size: int, cluster: Cluster) -> Seconds:
    """The time where p is not a power of two: surplus ranks send their array to a partner before, and get the sum."""
    messages, link = 2 * (cluster.ranks & (cluster.ranks - 1) > 0), cluster.slowest
    return time[0] + messages * link.latency_s, time[1] + messages * size * link.byte_s


def exchange(size: int, cluster: Cluster) -> Seconds:
    """Two all-to-alls, of parts of all vectors and of the sum; the ranks of a host share its network link."""
    local_ranks, remote = cluster.local_ranks, cluster.ranks - cluster.local_ranks
    rank_s = (local_ranks - 1) * cluster.local.byte_s + local_ranks * remote * cluster.network.byte_s
    return 2 * cluster.slowest.latency_s, 2 * size / cluster.ranks * rank_s


def horovod_over_gloo(size: int, cluster: Cluster) -> Seconds:
    """Recursive doubling for small arrays, the ring for others."""
    small_bytes = SMALL_BYTES_OF_TWO if cluster.ranks == 2 else SMALL_BYTES
    return (recursive_doubling if size <= small_bytes else ring)(size, cluster)


def mpi(size: int, cluster: Cluster) -> Seconds:
    """The fastest, as Open MPI and MPICH choose by size."""
    return min((algorithm(size, cluster) for algorithm in (recursive_doubling, rabenseifner, ring)), key=sum)


class Allreduce(NamedTuple):
    library: str
    """Its name in the tables of `benchmarks/allreduce.py`."""
    algorithm: Callable[[int, Cluster], Seconds]
    agrees: bool = False
    """Whether its ranks agree on what is ready before each call, by a short allreduce: Horovod's do."""
    overlap: float = 0.0
    """Share of the communication hidden behind backward, of what could be; published systems have 0 to 0.75."""
    in_turn: bool = False
    """Whether its ranks send the messages of an exchange one after the other: it then takes as long as a ring."""

    def agreement(self, cluster: Cluster) -> Seconds:
        """What the ranks need before each call."""
        return recursive_doubling(AGREEMENT_BYTES, cluster) if self.agrees else (0.0, 0.0)

    def seconds(self, size: int, cluster: Cluster, packed: bool = False) -> float:
        """Seconds of a call for `size` bytes, of packed values or others; one rank needs none."""
        if cluster.ranks == 1:
            return 0.0
        link = cluster.slowest
        ratio, before_s = link.ratio(size), link.call_s + sum(self.agreement(cluster))
        if not packed or self.in_turn:
            return ratio * (before_s + sum(self.algorithm(size, cluster)))
        sizes_s = self.agrees * link.latency_s  # ranks first tell each other the sizes of the parts
        return ratio * (2 * (before_s + sizes_s) + sum(exchange(size, cluster)))


STRATEGIES = {
    "horovod": Allreduce("horovod over Gloo", horovod_over_gloo, agrees=True, overlap=0.5),
    "horovod over MPI": Allreduce("horovod over MPI", mpi, agrees=True, overlap=0.5),
    "ring": Allreduce("ring", ring, in_turn=True),
    "mpi": Allreduce("mpi", mpi),
    # gloo::AllreduceOptions uses the ring unless another algorithm is asked for, which torch.distributed does not.
    "ddp": Allreduce("gloo", ring, overlap=0.5),
    "multiworker": Allreduce("gloo", ring, overlap=0.5),
}
"""Those of strategies over ranks."""
