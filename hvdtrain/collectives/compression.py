"""The methods of --compression: what computes the mean by each, what ranks send for it, and which one a link needs."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.horovod import BYTES
from hvdtrain.collectives.mean import PackedMean, PlainMean, count
from hvdtrain.collectives.packing import packing_of
from hvdtrain.collectives.powersgd import LowRankMean, is_low_rank
from hvdtrain.config.compression import CHOICES, NONE, PACKED, POWERSGD, Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.config.sources import recorded
from hvdtrain.errors import UserError
from hvdtrain.interfaces import AllreduceGroup, Mean, Shapes

PROBE_ELEMENTS = 1 << 18
"""Of the vector by which they are compared, at most: for longer ones bandwidth counts even more."""
PROBES = 3
GAIN = 0.8
"""Share of the time without compression above which it is not worth its rounding, nor what Horovod hides of it."""


def make_mean(config: Config, group: AllreduceGroup) -> Mean:
    """What computes means over the ranks of a group as --compression asks for."""
    return _mean_by(parse_method(config.compression), group, config.seed)


def _mean_by(method: Method, group: AllreduceGroup, seed: int) -> Mean:
    kinds: dict[str, type[PlainMean]] = {NONE: PlainMean, POWERSGD: LowRankMean}
    return kinds.get(method.name, PackedMean)(method, group, seed)


class Traffic(NamedTuple):
    """What ranks exchange for one mean, in bytes."""

    allreduces: tuple[int, ...] = ()
    """Vectors of which each is summed by an allreduce."""
    packed: int = 0
    """A packed vector, of which each rank gets one part of all others, and all parts of the sum."""


def traffic(method: Method, shapes: Shapes) -> Traffic:
    """What a method exchanges for arrays of these shapes."""
    if method.name in PACKED:
        return Traffic(packed=packing_of(method.name, np.random.SFC64(0)).size(count(shapes)))
    if method.name != POWERSGD:
        return Traffic((BYTES[method.name] * count(shapes),))
    low = [shape for shape in shapes if is_low_rank(*shape, method.rank)]
    whole = count(shapes) - count(low)
    lefts, rights = (4 * method.rank * sum(shape[axis] for shape in low) for axis in (0, 1))
    return Traffic((4 * whole + lefts, rights) if low else (4 * whole,))


class Choice(NamedTuple):
    """What --compression auto has chosen."""

    method: Method
    why: str
    """What was measured."""


def choose(group: AllreduceGroup, elements: int | None, folder: Path | None = None) -> Choice:
    """The fastest of CHOICES between these ranks; the same on every rank, a collective. elements: of all gradients.

    folder: of the run, if it may be one that is resumed, as after a restart: it keeps what was chosen at first.
    """
    known = group.broadcast(_recorded(folder) if folder and group.rank == 0 else "")
    if known:
        return Choice(parse_method(known), f"--compression auto is {known}, as in the run that is resumed")
    values = np.random.default_rng(0).standard_normal(min(elements or PROBE_ELEMENTS, PROBE_ELEMENTS), np.float32)
    measured = group.broadcast([_measure(_mean_by(method, group, 0), values) for method in CHOICES])
    fastest = int(np.argmin(measured))
    chosen = CHOICES[fastest if measured[fastest] < GAIN * measured[0] else 0]
    times = ", ".join(f"{method} {seconds * 1e3:.1f} ms" for method, seconds in zip(CHOICES, measured, strict=True))
    return Choice(chosen, f"--compression auto is {chosen}: the mean of {len(values)} values takes {times}")


def _recorded(folder: Path) -> str:
    """What was chosen for the run of a folder; empty for a new run, and if that is not known."""
    with contextlib.suppress(UserError):
        method = recorded(folder).compression if (folder / "config.json").is_file() else ""
        return method if method in map(str, CHOICES) else ""
    return ""


def _measure(mean: Mean, values: np.ndarray) -> float:
    """Seconds of a mean: the shortest of PROBES, after one in which connections are made."""
    times = []
    for _ in range(1 + PROBES):
        began = time.perf_counter()
        mean.average(values.copy(), ())
        times.append(time.perf_counter() - began)
    return min(times[1:])
