"""What ranks send, how often, and how long each packs it: `--compression` and `--sync-every` in the model of a step."""

from __future__ import annotations

import functools
import time
from typing import Literal, NamedTuple

import numpy as np

from hvdtrain.collectives.compression import Traffic, make_mean, traffic
from hvdtrain.collectives.groups import Exchanging, SingleProcess
from hvdtrain.collectives.mean import count
from hvdtrain.config.compression import FP16, NONE, POWERSGD, Method
from hvdtrain.config.options import Config
from hvdtrain.interfaces.strategy import Shapes

NUMBER_BYTES = 4
"""Of a gradient's value as it is computed."""
MEASURED_VALUES = 1 << 22
"""Of the arrays whose packing is measured, at most: beyond the processor's caches, time is proportional to values."""
MEASURED_RANKS = 1 << 8
"""Of a job whose packing is measured, at most."""
MEASURED_S, MEASUREMENTS = 0.2, 3
"""Means are repeated for that long, and at least so often; the shortest counts, in which nothing else ran."""
Change = Literal["nothing", "rounding", "the algorithm"]
"""What a way to combine gradients changes of the result."""


class Combining(NamedTuple):
    """How ranks combine what they compute: by a method, in each step or, with local steps between, in every few."""

    method: Method = Method(NONE)
    sync_every: int = 1

    def __str__(self) -> str:
        every = f" --sync-every {self.sync_every}" * (self.sync_every > 1)
        return f"--compression {self.method}{every}"

    @property
    def changes(self) -> Change:
        if self.sync_every > 1 or self.method.name == POWERSGD:
            return "the algorithm"
        return "nothing" if self.method.name == NONE else "rounding"

    def is_possible(self, by_horovod: bool) -> bool:
        """Whether there is such a job: fp16 is Horovod's own, for gradients. by_horovod: the library is Horovod."""
        return self.method.name != FP16 or (by_horovod and self.sync_every == 1)

    @property
    def is_in_backward(self) -> bool:
        """Whether gradients are sent as they are, or as Horovod itself casts them, while backward computes others.

        Every other method takes all gradients in one vector, after backward; local steps combine changes of weights.
        """
        return self.sync_every == 1 and self.method.name in (NONE, FP16)

    def traffic(self, shapes: Shapes) -> Traffic:
        """What ranks exchange when they combine arrays of these shapes."""
        return traffic(self.method, shapes)

    def sent_bytes(self, shapes: Shapes, ranks: int) -> float:
        """Bytes that a rank sends in a step on average, at least: 2 (p - 1) / p of what is summed or exchanged."""
        exchanged = self.traffic(shapes)
        return 2 * (ranks - 1) / ranks * (sum(exchanged.allreduces) + exchanged.packed) / self.sync_every


PLAIN = Combining()
"""All gradients as they are, in each step."""


class _Mirror(Exchanging, SingleProcess):
    """A rank that gets its own messages in place of those of the others: with it, a mean costs only its arithmetic."""

    def __init__(self, size: int) -> None:
        self.size = size

    def allreduce(self, values: np.ndarray) -> None:
        pass

    def exchange(self, parts: np.ndarray) -> np.ndarray:
        return parts


@functools.cache
def packing_s(method: Method, shapes: tuple[tuple[int, int], ...], ranks: int) -> float:
    """Seconds in which this machine packs and unpacks what one of `ranks` ranks sends for one mean; measured.

    The code of that mean runs, in this process alone. 0 for none and Horovod's fp16, and for one rank.
    """
    if method.name in (NONE, FP16) or ranks == 1:
        return 0.0
    measured = _beginning(shapes, MEASURED_VALUES)
    mean = make_mean(Config(compression=str(method)), _Mirror(min(ranks, MEASURED_RANKS)))
    values = np.random.default_rng(0).standard_normal(count(measured), np.float32)
    seconds: list[float] = []
    mean.average(values.copy(), measured)
    while sum(seconds) < MEASURED_S or len(seconds) < MEASUREMENTS:
        given = values.copy()
        began = time.perf_counter()
        mean.average(given, measured)
        seconds.append(time.perf_counter() - began)
    return min(seconds) * count(shapes) / len(values)


def _beginning(shapes: Shapes, most: int) -> Shapes:
    """The first of the arrays that together have at most that many values; of a larger one, some rows."""
    kept: list[tuple[int, int]] = []
    for rows, columns in shapes:
        if most:
            columns = min(columns, most)
            kept.append((min(rows, most // columns), columns))
            most -= kept[-1][0] * columns
    return kept
