"""What `scale` says of a row of `bench links` before its job is started.

The model does not see the jobs. It gets the record of one rank without a network, the latency of two ranks without a
limit, and the speed that `tc` was given. Ranks share this machine's cores, as those of a cluster would not, so
computing counts ranks / cores times where there are more ranks than cores.
"""

from __future__ import annotations

import os

from hvdtrain.config.compression import parse_method
from hvdtrain.measure.bench.allreduce import AllreduceBenchOptions, measure
from hvdtrain.measure.bench.hosts import Speed
from hvdtrain.measure.bench.links_rows import Row
from hvdtrain.measure.scale.algorithms import Link
from hvdtrain.measure.scale.communication import Measured, fit
from hvdtrain.measure.scale.comparison import step_on_link
from hvdtrain.measure.scale.compression import Combining
from hvdtrain.measure.scale.inputs import library
from hvdtrain.measure.scale.workload import LIBRARY_OF, Workload

SIZES = (8, 1024, 16384)
"""Bytes of the allreduces from which a latency is fitted."""


def library_of(row: Row) -> str:
    """The model's name of what performs a row's allreduce; KVStore, which it does not know, counts as a ring."""
    return {"horovod": "horovod-gloo", "gloo": "gloo", "kvstore": "ring"}.get(row.strategy) or LIBRARY_OF[row.strategy]


def latency(name: str) -> float:
    """Seconds of a message of a library between two ranks of this machine, without a limit."""
    of = library(name)
    times = measure(of.row, AllreduceBenchOptions(np=2, sizes=SIZES, repeats=1, idle_seconds=0))
    measured = [Measured(2, size, seconds) for size, seconds in times.seconds.items()]
    return fit(measured, of.algorithm, of.row_coordination).link.latency_s


def link(latency_s: float, speed: Speed) -> Link:
    """That of a host, for messages of a library whose latency between two ranks without a limit is known."""
    return Link(latency_s + speed.delay_ms / 1e3, speed.byte_s)


def step_s(row: Row, workload: Workload, latency_s: float, speed: Speed, ranks: int) -> float:
    """Seconds of a step. workload: of one rank alone, with as many rows as each rank has."""
    sharing = max(ranks / len(os.sched_getaffinity(0)), 1.0)
    combining = Combining(parse_method(row.compression), row.sync_every)
    return step_on_link(workload, link(latency_s, speed), ranks, library_of(row), combining, sharing).seconds
