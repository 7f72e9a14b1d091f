"""The methods of --compression: what computes the mean by each, and what ranks send for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hvdtrain.collectives.horovod import BYTES
from hvdtrain.collectives.mean import PackedMean, PlainMean, count
from hvdtrain.collectives.packing import packing_of
from hvdtrain.collectives.powersgd import LowRankMean, is_low_rank
from hvdtrain.config.forms import NONE, PACKED, POWERSGD, Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.interfaces.combining import Mean, Shapes
from hvdtrain.interfaces.strategy import AllreduceGroup


def make_mean(config: Config, group: AllreduceGroup) -> Mean:
    """What computes means over the ranks of a group as --compression asks for."""
    method = parse_method(config.compression)
    kinds: dict[str, type[PlainMean]] = {NONE: PlainMean, POWERSGD: LowRankMean}
    return kinds.get(method.name, PackedMean)(method, group, config.seed)


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
