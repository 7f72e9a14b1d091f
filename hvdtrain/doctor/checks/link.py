"""The link between the ranks of a job: whether it, rather than the cores, is what steps would wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hvdtrain.doctor.check import Finding, check, ok, warn
from hvdtrain.doctor.context import CheckContext

if TYPE_CHECKING:  # NumPy may be what is broken
    import numpy as np

SMALL_BYTES = 8
GRADIENT_BYTES = 4 * 129_068
"""LeNet's gradients."""
COMPUTE_S = 0.025
"""A core computes a step of LeNet with 128 images in that time: 5,207 images/s in docs/benchmarks.md (PyTorch, single).
Networks differ in how much they compute for each parameter, and GPUs are faster, so the finding has the figures."""
REPEATS = 10
"""The shortest allreduce counts, which other programs disturbed least."""
REPEATED_S = 0.5
"""One that takes longer is not repeated."""
WAITED_SHARE = 0.5
"""Of the time of allreduces: a rank that waits for a core for so much of it would also make a fast link look slow. With
2 ranks and 7 other programs on 2 cores it was 0.2 at 20 Mbit/s and 0.5 to 0.7 at 100 Mbit/s."""
LATENCY_SHARE = 0.5
"""Of the time of an allreduce: from there on, fewer bytes would not help, only fewer exchanges."""


class LinkTimes(NamedTuple):
    """Allreduces over the ring of a job's ranks, on its slowest rank."""

    ranks: int
    small_s: float
    """Of SMALL_BYTES."""
    gradient_s: float
    """Of GRADIENT_BYTES."""
    waited_share: float
    """Of the time of the latter, how much a rank was ready to run and waited for a core."""
    crowded: bool
    """Whether a host has more ranks than cores."""

    @property
    def mbit_s(self) -> float:
        """What a rank sent meanwhile, at least: 2 (p - 1) / p of the bytes, as in nccl-tests' bus bandwidth."""
        return 2 * (self.ranks - 1) / self.ranks * GRADIENT_BYTES * 8 / self.gradient_s / 1e6


@check("job", "job")
def check_link(context: CheckContext) -> Iterator[Finding]:
    """the cores, not the link between the ranks, are what a step waits for"""
    import numpy as np

    assert context.job
    small = [_timed(context, np.zeros(SMALL_BYTES // 4, np.float32)) for _ in range(REPEATS)]
    values = np.zeros(GRADIENT_BYTES // 4, np.float32)
    sent = [_timed(context, values)]
    if max(context.gather(sent[0][0])) < REPEATED_S:
        sent += [_timed(context, values) for _ in range(REPEATS)]
    seconds, waited_s = np.sum(sent, axis=0).tolist()
    crowded = context.job.local_ranks > len(os.sched_getaffinity(0))
    shortest = [min(timed)[0] for timed in (small, sent)]
    gathered = context.gather([*shortest, waited_s / seconds, crowded])
    yield judge(LinkTimes(context.rank_info.size, *map(max, zip(*gathered, strict=True))))


def _timed(context: CheckContext, values: np.ndarray) -> tuple[float, float]:
    """The seconds of an allreduce, and of these, those in which this rank was ready to run and waited for a core."""
    assert context.job
    began, waited_s = time.perf_counter(), _waited_s()
    context.job.allreduce(values)
    return time.perf_counter() - began, _waited_s() - waited_s


def _waited_s() -> float:
    """Seconds that this thread was ready to run and waited for a core; 0 where the kernel does not count them."""
    with suppress(OSError, ValueError):
        _, waited_ns, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
        return waited_ns * 1e-9
    return 0.0


def judge(times: LinkTimes) -> Finding:
    """The finding; for a link that is slow, with the options that send less, or less often, over it."""
    small_ms, gradient_ms, compute_ms = (1e3 * seconds for seconds in (times.small_s, times.gradient_s, COMPUTE_S))
    figures = (
        f"over {times.ranks} ranks, an allreduce takes {small_ms:.2f} ms for 8 bytes and {gradient_ms:.1f} ms for the "
        f"{GRADIENT_BYTES / 1e3:.0f} kB of LeNet's gradients ({times.mbit_s:,.0f} Mbit/s), which a core computes in "
        f"about {compute_ms:.0f} ms"
    )
    if times.gradient_s < COMPUTE_S:
        return ok(figures)
    if times.crowded or times.waited_share >= WAITED_SHARE:
        text = f"ranks wait for cores, {times.waited_share:.0%} of the time, so the link cannot be judged: {figures}"
        return warn(text, "start at most one rank per core, end other programs on the hosts, and run the doctor again")
    return warn(f"the link, not the cores, is what a step waits for: {figures}", _remedy(times))


def _remedy(times: LinkTimes) -> str:
    if times.small_s >= LATENCY_SHARE * times.gradient_s:
        return "exchange less often: --sync-every 8 (docs/links.md), or larger batches; fewer bytes would not help"
    return (
        "--compression int8, which only rounds, or powersgd:4 or --sync-every 8, which change the algorithm "
        "(docs/links.md)"
    )
