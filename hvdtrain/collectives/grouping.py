"""Grouping of gradients (`--groups`): which of them Horovod joins in one message.

A message costs a fixed time, whatever its size; but backward hides all messages except the last, so a large network
wants several. Let S be the bytes of all gradients, a the fixed cost of a message, b the bandwidth, and B the time of
backward. With k equal groups, sent one after the other as backward produces them, the time of a step grows by

    k a + max(S/b / k,  S/b - B (1 - 1/k))

The first value in the maximum holds if backward is longer than the transfer (S/b < B): the last group starts when
backward ends. The second holds if it is shorter: the first group starts at B/k, and all follow without a pause. The
derivative is zero at

    k = sqrt(min(S/b, B) / a)

The choice must be equal on all ranks, so it uses the constants below instead of measured times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from hvdtrain.config.options import Config

MESSAGE_S = 300e-6
"""Seconds that a message costs by itself: an 8-byte allreduce of two ranks over Gloo on one host takes 150 us with the
event-driven core, 360 us if all of it goes by Gloo's ring, and up to 1.1 ms with Horovod's own cycle."""
BANDWIDTH = 1.25e9
"""Bytes per second: 10 Gbit/s Ethernet. NCCL over 100 Gbit/s has a tenth of both the cost of a message and the time of
a byte, so the product of cost and bandwidth, which decides the size of a group, is about the same there."""
FLOPS = 50e9
"""Floating-point operations per second of a rank: half the fp32 peak of a 3 GHz core with AVX2 (96 GFLOP/s)."""
BACKWARD_FLOP = 4
"""Operations of backward for each weight and row: a multiplication and an addition for the gradient of the weights, and
the same for that of the inputs. Exact for dense layers; convolutions need more, so backward is not overestimated."""
BYTES = {"none": 4, "fp16": 2}
"""Bytes of a gradient's element in a message, by --compression."""


def gradient_groups(config: Config, parameters: Mapping[str, int], ranks: int) -> list[list[str]]:
    """Names of the parameters whose gradients share a message, in the order in which backward makes them.

    parameters: number of elements of each, in the order of forward. ranks: size of the job, which decides the rows of a
    backward pass.
    """
    sizes, names = list(parameters.values())[::-1], reversed(list(parameters))
    rows = config.global_batch(ranks) / (ranks * config.accumulate)
    count = choose_count(sizes, BYTES[config.compression], rows) if config.groups == "auto" else config.groups
    return [list(itertools.islice(names, length)) for length in split(sizes, count)]


def choose_count(sizes: Sequence[int], element_bytes: int, rows: float) -> int:
    """The number of groups of --groups auto: the formula above, rounded down, or fewer if gradients are larger.

    sizes: elements of each gradient, in the order of backward. element_bytes: bytes of an element in a message.
    rows: rows of a backward pass on one rank.
    """
    total = sum(sizes)
    transfer_s = total * element_bytes / BANDWIDTH
    backward_s = total * BACKWARD_FLOP * rows / FLOPS
    ideal = max(math.floor(math.sqrt(min(transfer_s, backward_s) / MESSAGE_S)), 1)
    return len(set(_shares(sizes, ideal)))  # a large gradient is a message of its own, small ones join a neighbor


def split(sizes: Sequence[int], count: int) -> list[int]:
    """The number of gradients in each of `count` groups of neighbors, 1 <= count <= len(sizes); none is empty.

    A gradient belongs to the share of the bytes in which its middle lies, so that no group exceeds its share by more
    than the largest gradient.
    """
    lengths = [0] * count
    group = -1
    for i, share in enumerate(_shares(sizes, count)):
        gradients_left = len(sizes) - i
        group = min(max(share, count - gradients_left), group + 1)
        lengths[group] += 1
    return lengths


def _shares(sizes: Sequence[int], count: int) -> list[int]:
    """For each gradient, which of `count` equal shares of all elements has its middle; integers, so never rounded."""
    total, ends = sum(sizes), itertools.accumulate(sizes)
    return [(2 * end - size) * count // (2 * total) for size, end in zip(sizes, ends, strict=True)]
