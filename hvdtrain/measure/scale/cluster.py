"""Links and hosts, as the model of an allreduce sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
