"""The time of a training step over N ranks, part by part, with or without compression."""

from __future__ import annotations

import math
import timeit
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.compression import make_mean, traffic
from hvdtrain.collectives.groups import AllreduceGroup
from hvdtrain.collectives.mean import count
from hvdtrain.config.forms import FP16, NONE, Method
from hvdtrain.config.options import Config
from hvdtrain.interfaces.combining import Shapes
from hvdtrain.measure.scale.allreduce import Allreduce, Cluster, Link
from hvdtrain.measure.scale.measured import Workload

PLAIN = Method(NONE)
BACKWARD_SHARE = 2 / 3
"""Backward computes two products where forward computes one: with respect to inputs, and to weights."""
FUSION_BYTES = 128 << 20
"""HOROVOD_FUSION_THRESHOLD: the largest message that Horovod makes of several gradients."""
PACKINGS = 5
"""Of which the shortest counts, in which nothing else ran."""


class StepParts(NamedTuple):
    """Seconds of a step, by what takes them; communication that backward hides is not in it."""

    compute: float
    input: float
    stragglers: float
    """Waiting for the slowest rank."""
    packing: float
    communication: float


@dataclass(frozen=True)
class StepModel:
    """A workload on a cluster, with a method of --compression."""

    workload: Workload
    allreduce: Allreduce
    network: Link
    local: Link
    ranks_per_host: int = 1
    method: Method = PLAIN

    def step(self, ranks: int, rows: float) -> StepParts:
        """The step of `ranks` ranks with `rows` images each; with local steps, the mean of those between two syncs."""
        work, every = self.workload, self.workload.sync_every
        cluster = Cluster(ranks, self.ranks_per_host, self.network, self.local)
        compute = work.fixed_s + work.row_s * rows
        # The mean of that many independent steps spreads less by the root of their number.
        slowest = work.spread / math.sqrt(every) * compute * expected_maximum(ranks)
        if every == 1 and self.method.name in (NONE, FP16):
            packing, communication = 0.0, self._during_backward(cluster, compute)
        else:  # all gradients, or changes of weights, in one vector after the step
            packing = packing_s(self.method, work.shapes, ranks) / every
            sent = traffic(self.method, work.shapes)
            calls = [(size, False) for size in sent.allreduces] + [(sent.packed, True)] * (sent.packed > 0)
            communication = sum(self.allreduce.seconds(size, cluster, packed) for size, packed in calls) / every
        return StepParts(compute, work.input_row_s * rows, slowest, packing, communication)

    def _during_backward(self, cluster: Cluster, compute_s: float) -> float:
        """Seconds that a step waits for its gradients, with the best number of equal messages.

        Message k of m is ready k / m of backward after its start, and is sent when those before it are. With c
        seconds each, the last is done max(c, m c - (m - 1) / m backward) after backward, at best.
        """
        overlap, backward_s = self.allreduce.overlap, BACKWARD_SHARE * compute_s
        size = sum(traffic(self.method, self.workload.shapes).allreduces)
        least = max(math.ceil(size / FUSION_BYTES), 1) if self.allreduce.agrees else 1
        most = max(len(self.workload.shapes), least) if overlap else least
        waits = []
        for number in {least, most, *(2**power for power in range(most.bit_length()) if 2**power >= least)}:
            message_s = self.allreduce.seconds(math.ceil(size / number), cluster)
            hidden = number * message_s - max(message_s, number * message_s - (number - 1) / number * backward_s)
            waits.append(number * message_s - overlap * hidden)
        return min(waits)


def expected_maximum(number: int) -> float:
    """Expected maximum of standard normal values, within 0.03: Blom, Statistical Estimates ..., 1958, a = 0.375."""
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25))


class _Mirror(AllreduceGroup):
    """A rank that gets its own messages in place of those of the others: with it, a mean costs only its arithmetic."""

    def __init__(self, size: int) -> None:
        self.size = size

    def allreduce(self, values: np.ndarray) -> None: ...

    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        return vector


def packing_s(method: Method, shapes: Shapes, ranks: int) -> float:
    """Seconds in which this machine packs and unpacks what one of `ranks` ranks sends, by the code that does it."""
    if method.name == NONE or ranks == 1:
        return 0.0
    mean = make_mean(Config(compression=str(method)), _Mirror(min(ranks, 256)))
    values = np.random.default_rng(0).standard_normal(count(shapes), np.float32)
    return min(timeit.repeat(lambda: mean.average(values.copy(), shapes), number=1, repeat=PACKINGS))
