"""The share of time that checkpoints, failures and restarts take.

Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974; Daly, A higher order estimate
of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Reliability:
    """How often hosts fail, and what that costs."""

    host_mtbf_s: float
    """Mean time between the failures of one host; infinite for hosts that never fail."""
    checkpoint_s: float
    """Time to write a checkpoint."""
    restart_s: float
    """Time from a failure to the first new step."""


def checkpoint_interval(reliability: Reliability, hosts: int) -> float:
    """Seconds between two checkpoints that lose least time: Daly's equation 37, of which Young's is the first term."""
    mtbf_s, write_s = reliability.host_mtbf_s / hosts, reliability.checkpoint_s
    if math.isinf(mtbf_s):
        return math.inf
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = math.sqrt(write_s / (2 * mtbf_s))
    return math.sqrt(2 * write_s * mtbf_s) * (1 + ratio / 3 + ratio**2 / 9) - write_s


def slowdown(reliability: Reliability, hosts: int) -> float:
    """Wall-clock time with failures, divided by the time without checkpoints and failures; at least 1.

    Daly's equation 20: M exp(R / M) (exp((tau + delta) / M) - 1) / tau with the optimal interval tau. Infinite for
    hosts that fail so often that no interval ends.
    """
    mtbf_s = reliability.host_mtbf_s / hosts
    if math.isinf(mtbf_s):
        return 1.0
    interval_s = checkpoint_interval(reliability, hosts)
    if interval_s <= 0:
        interval_s = mtbf_s / 1000  # checkpoints that cost nothing can be written all the time
    try:
        lost = mtbf_s * math.exp(reliability.restart_s / mtbf_s)
        return max(lost * math.expm1((interval_s + reliability.checkpoint_s) / mtbf_s) / interval_s, 1.0)
    except OverflowError:
        return math.inf
