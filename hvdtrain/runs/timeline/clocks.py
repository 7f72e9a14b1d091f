"""The clocks of the ranks: how far each differs from rank 0's, and how exactly that is known.

An allreduce ends on no rank before it has begun on every rank. With the times when it began and ended on each, that
gives bounds of the difference between two clocks, without an assumption about the network:

    begin(rank) - end(0)  <=  clock(rank) - clock(0)  <=  end(rank) - begin(0)

The tightest bounds of several allreduces count, as in Cristian's algorithm (Probabilistic clock synchronization, 1989).
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvdtrain.interfaces.strategy import Group
from hvdtrain.system.phases import now

ROUNDS = 30
"""Allreduces whose times are compared."""


class RoundTimes(NamedTuple):
    """The allreduces of one rank."""

    clock: str
    """Identifies the clock: ranks with the same text read the same one."""
    begins: list[int]
    ends: list[int]
    """When each allreduce began and ended, in ns of this rank's clock."""


class Offset(NamedTuple):
    """A rank's clock minus rank 0's, in ns, and by how much that may be wrong."""

    ns: float
    error_ns: float


class ClockReading(NamedTuple):
    """The offsets of all ranks at a time of rank 0's clock."""

    at: int
    offsets: list[Offset]


def read_clocks(group: Group) -> ClockReading:
    """Measure how the ranks' clocks differ now; call it on every rank."""
    begins, ends = [], []
    for _ in range(ROUNDS if group.size > 1 else 0):
        begins.append(now())
        group.sum(np.zeros(1))
        ends.append(now())
    ranks: list[RoundTimes] = [RoundTimes(*times) for times in group.gather((_clock(), begins, ends))]
    return ClockReading(now(), [offset(ranks[0], rank) for rank in ranks])


def offset(first: RoundTimes, rank: RoundTimes) -> Offset:
    """How far a rank's clock differs from that of rank 0, `first`."""
    if rank.clock == first.clock:
        return Offset(0, 0)
    least = max(begin - end for begin, end in zip(rank.begins, first.ends, strict=True))
    most = min(end - begin for end, begin in zip(rank.ends, first.begins, strict=True))
    return Offset((least + most) / 2, abs(most - least) / 2)


def _clock() -> str:
    """The host since it was started, and the namespace of its clock; unique where that cannot be found out."""
    with contextlib.suppress(OSError):
        boot, namespace = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), Path("/proc/self/ns/time")
        return f"{boot} {os.readlink(namespace) if namespace.is_symlink() else ''}"
    return uuid.uuid4().hex


class ClockLine:
    """A rank's clock against rank 0's, between a reading before the steps and one after them: clocks drift."""

    def __init__(self, rank: int, before: ClockReading, after: ClockReading) -> None:
        self._first, self._last = before.offsets[rank], after.offsets[rank]
        self._begin = before.at + self._first.ns
        self._length = max(after.at + self._last.ns - self._begin, 1)
        self.error_ns = max(self._first.error_ns, self._last.error_ns)
        self.offset_ns = self._first.ns

    def to_rank_0(self, time: int) -> float:
        """A time of this rank's clock on rank 0's clock, in ns."""
        share = min(max((time - self._begin) / self._length, 0.0), 1.0)
        return time - (self._first.ns + share * (self._last.ns - self._first.ns))
