"""Links and hosts, and the seconds of an allreduce of n bytes over p ranks, by algorithm.

alpha, beta and gamma are those of `Link`. On p hosts with one rank each the formulas are, for p a power of two,

    ring                 2 (p - 1) alpha + 2 (p - 1) / p n beta + (p - 1) / p n gamma
    recursive doubling   lg p (alpha + n beta + n gamma)
    Rabenseifner         2 lg p alpha + 2 (p - 1) / p n beta + (p - 1) / p n gamma
    two exchanges        2 alpha + 2 (p - 1) / p n beta

The last are all-to-alls: in one each rank gets its part of all vectors, in the other all parts of the sum. So packed
values are summed (`hvdtrain.collectives.groups.Exchanging`), which no library's allreduce can add.

Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 19(1),
2005; for the ring Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2),
2009. Several ranks on a host: see each function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

SMALLEST, LARGEST = 1e-9, 1e15
"""Of times, rates and other quantities, in any unit: products and quotients of a few of them are finite."""


def is_quantity(value: float) -> bool:
    """Whether a positive number may be a quantity that was measured, or is asked for."""
    return SMALLEST <= value <= LARGEST


@dataclass(frozen=True)
class Link:
    """A connection between two ranks, in the terms of Hockney's model: n bytes take latency + n / bandwidth."""

    latency_s: float
    """Seconds before the first byte arrives (alpha)."""
    byte_s: float
    """Seconds per byte, in each direction at the same time (beta)."""
    sum_byte_s: float = 0.0
    """Seconds to add one byte to another in a rank's memory (gamma)."""


@dataclass(frozen=True)
class Cluster:
    """Hosts of equal size; the ranks are numbered host by host, so that neighbors share a host if they can.

    network: between hosts, shared by all ranks of a host. local: between the ranks of a host.
    """

    ranks: int
    ranks_per_host: int
    network: Link
    local: Link

    @property
    def hosts(self) -> int:
        """The last host may have fewer ranks than the others."""
        return math.ceil(self.ranks / self.ranks_per_host)

    @property
    def local_ranks(self) -> int:
        """Ranks of the fullest host."""
        return min(self.ranks, self.ranks_per_host)

    @property
    def slowest(self) -> Link:
        """The link that limits whatever uses all links at the same time; a host's own may be the slowest."""
        if self.hosts == 1:
            return self.local
        if self.local_ranks == 1:
            return self.network
        return Link(
            max(self.network.latency_s, self.local.latency_s),
            max(self.network.byte_s, self.local.byte_s),
            max(self.network.sum_byte_s, self.local.sum_byte_s),
        )


class AllreduceTime(NamedTuple):
    """Seconds of an allreduce, by what takes them."""

    latency_s: float
    transfer_s: float
    """Sending bytes, and summing them."""

    @property
    def seconds(self) -> float:
        return self.latency_s + self.transfer_s


def ring(size: int, cluster: Cluster) -> AllreduceTime:
    """A part of the array travels around the ring twice, over each link once in a round.

    Its latency is that of 2 (p - 1) successive hops, of which one in `ranks_per_host` is between hosts; its bandwidth
    that of the slowest link, which carries one part in each of the 2 (p - 1) steps. NCCL's tuning model counts the
    same (src/graph/tuning.cc).
    """
    p = cluster.ranks
    network_hops = cluster.hosts if cluster.hosts > 1 else 0
    round_s = network_hops * cluster.network.latency_s + (p - network_hops) * cluster.local.latency_s
    link = cluster.slowest
    part = (p - 1) / p * size
    return AllreduceTime(2 * (p - 1) / p * round_s, part * (2 * link.byte_s + link.sum_byte_s))


def recursive_doubling(size: int, cluster: Cluster) -> AllreduceTime:
    """lg p exchanges of the whole array; all ranks of a host share its network link in those between hosts."""
    network_rounds, local_rounds = _rounds(cluster)
    network, local = cluster.network, cluster.local
    latency_s = network_rounds * network.latency_s + local_rounds * local.latency_s
    transfer_s = network_rounds * size * (cluster.local_ranks * network.byte_s + network.sum_byte_s)
    transfer_s += local_rounds * size * (local.byte_s + local.sum_byte_s)
    return _with_surplus(AllreduceTime(latency_s, transfer_s), size, cluster)


def rabenseifner(size: int, cluster: Cluster) -> AllreduceTime:
    """Reduce-scatter by recursive halving, allgather by recursive doubling.

    The first halvings are between the ranks of a host. Thereafter each rank has an equal part of the array left, so
    those of a host together send n bytes less 1 / hosts over the network, and receive as many.
    """
    network_rounds, local_rounds = _rounds(cluster)
    network, local, hosts, local_ranks = cluster.network, cluster.local, cluster.hosts, cluster.local_ranks
    latency_s = 2 * (network_rounds * network.latency_s + local_rounds * local.latency_s)
    transfer_s = (1 - 1 / local_ranks) * size * (2 * local.byte_s + local.sum_byte_s)
    transfer_s += (1 - 1 / hosts) * size * (2 * network.byte_s + network.sum_byte_s / local_ranks)
    return _with_surplus(AllreduceTime(latency_s, transfer_s), size, cluster)


def hierarchical(size: int, cluster: Cluster) -> AllreduceTime:
    """A ring in each host, and the fastest algorithm between one rank of each host.

    This is Horovod's hierarchical allreduce: reduce-scatter in the host, allreduce over the hosts, allgather in the
    host (Horovod's NCCLHierarchicalAllreduce).
    """
    in_host = Cluster(cluster.local_ranks, cluster.local_ranks, cluster.local, cluster.local)
    over_hosts = Cluster(cluster.hosts, 1, cluster.network, cluster.network)
    parts = [ring(size, in_host)] if in_host.ranks > 1 else []
    if over_hosts.ranks > 1:
        parts.append(min((flat(size, over_hosts) for flat in FLAT.values()), key=lambda time: time.seconds))
    return AllreduceTime(sum(part.latency_s for part in parts), sum(part.transfer_s for part in parts))


def exchange(size: int, cluster: Cluster) -> AllreduceTime:
    """Two all-to-alls of n / p bytes to each rank, whose messages are all under way at the same time.

    The ranks of a host share its network link for what they send to other hosts. Adding what arrives is part of
    unpacking it.
    """
    local_ranks, local, network = cluster.local_ranks, cluster.local, cluster.network
    part, remote = size / cluster.ranks, cluster.ranks - local_ranks
    sent_s = part * ((local_ranks - 1) * local.byte_s + local_ranks * remote * network.byte_s)
    return AllreduceTime(2 * cluster.slowest.latency_s, 2 * sent_s)


def _rounds(cluster: Cluster) -> tuple[int, int]:
    """Rounds of a recursive algorithm between hosts, and within them; lg p in total, rounded down."""
    rounds = int(math.log2(cluster.ranks))
    network_rounds = min(rounds, math.ceil(math.log2(cluster.hosts)))
    return network_rounds, rounds - network_rounds


def _with_surplus(time: AllreduceTime, size: int, cluster: Cluster) -> AllreduceTime:
    """The time where p is not a power of two: surplus ranks send their array to a partner before, and get the sum."""
    if cluster.ranks & (cluster.ranks - 1) == 0:
        return time
    link = cluster.slowest
    more = AllreduceTime(2 * link.latency_s, size * (2 * link.byte_s + link.sum_byte_s))
    return AllreduceTime(time.latency_s + more.latency_s, time.transfer_s + more.transfer_s)


Algorithm = Callable[[int, Cluster], AllreduceTime]
FLAT: dict[str, Algorithm] = {
    "ring": ring,
    "recursive doubling": recursive_doubling,
    "Rabenseifner": rabenseifner,
}
"""Algorithms that need no knowledge of hosts."""
EXCHANGE = "exchange"
"""Of packed vectors, twice, in place of an allreduce."""
ALGORITHMS: dict[str, Algorithm] = {**FLAT, "hierarchical": hierarchical, EXCHANGE: exchange}


def choices_of(algorithm: str, size: int, ranks: int) -> tuple[str, ...]:
    """The algorithms of which a library takes the fastest for `size` bytes; for the name of an algorithm, only that."""
    if algorithm == "horovod-gloo":
        small_bytes = SMALL_BYTES_OF_TWO if ranks == 2 else SMALL_BYTES
        return ("recursive doubling",) if size <= small_bytes else ("ring",)
    return CHOICES.get(algorithm, (algorithm,))


def allreduce_time(algorithm: str, size: int, cluster: Cluster) -> AllreduceTime:
    """The time by an algorithm, or by the best of those that a library chooses from; one rank needs none.

    algorithm: a key of ALGORITHMS or CHOICES. size: bytes.
    """
    if cluster.ranks == 1:
        return AllreduceTime(0.0, 0.0)
    times = [ALGORITHMS[name](size, cluster) for name in choices_of(algorithm, size, cluster.ranks)]
    return min(times, key=lambda time: time.seconds)


CHOICES: dict[str, tuple[str, ...]] = {
    # hvdtrain.collectives.ring
    "ring": ("ring",),
    # gloo::AllreduceOptions uses the ring unless another algorithm is asked for, which neither Horovod nor
    # torch.distributed does.
    "gloo": ("ring",),
    "horovod-gloo": ("recursive doubling", "ring"),
    # Open MPI and MPICH choose by size (Thakur et al.).
    "mpi": ("recursive doubling", "Rabenseifner", "ring"),
    # Its double binary tree (Sanders, Speck and Traff, 2009) has the terms of Rabenseifner's algorithm.
    "nccl": ("ring", "Rabenseifner"),
}
"""The algorithms that libraries choose from."""
SMALL_BYTES_OF_TWO, SMALL_BYTES = 4 << 20, 128 << 10
"""Up to which size Horovod over Gloo uses recursive doubling, with two ranks and with more: GlooSmallAllreduce in
setup/horovod/event-driven-gloo-small-allreduces.patch."""
