"""What predictions mean, in sentences."""

from __future__ import annotations

from itertools import takewhile

from hvdtrain.measure.scale.prediction import UNLIMITED_EFFICIENCY, Job, Prediction

WORTH = 1.1
"""A change is named if it makes training faster by this factor."""
LIBRARY_NAMES = {
    "ring": "the ring",
    "gloo": "Gloo's ring",
    "horovod-gloo": "Gloo",
    "mpi": "MPI",
    "nccl": "NCCL",
}
ADVICE = {
    "ring": "a ring (--strategy ring)",
    "mpi": "MPI (--strategy mpi, or horovod over MPI), which exchanges with fewer steps",
    "hierarchical": "a hierarchical allreduce (HOROVOD_HIERARCHICAL_ALLREDUCE=1, with NCCL and MPI)",
}
REMEDIES = {
    "input": "faster storage, or copies of the data on each host",
    "the slowest rank": "hosts without other work, pinned threads and cores",
    "Horovod's control plane": "fewer messages, a shorter cycle or the event-driven core",
    "the cost of a call": "fewer messages",
    "latency of the allreduce": "fewer and larger messages, larger batches, or an algorithm with fewer steps",
    "bandwidth of the allreduce": "a faster network, --compression fp16 (with horovod), or larger batches",
    "failures and checkpoints": "faster checkpoints and restarts, or more reliable hosts",
    "the small batch of a rank": "larger batches (--scaling weak): a rank has too few images to compute efficiently",
}


def findings(job: Job, predictions: list[Prediction]) -> list[str]:
    """Sentences on: how far the job scales, what limits it from where on, and what would help."""
    lines = [_reach(predictions)]
    previous = "computation"
    for one in predictions:
        if one.limited_by not in ("computation", previous):
            lines.append(
                f"From {one.ranks} ranks on, {one.limited_by} limits training "
                f"(efficiency {one.efficiency.value:.0%}): {REMEDIES[one.limited_by]} would help."
            )
        previous = one.limited_by
    return [*filter(None, lines), *_better_algorithm(job, predictions), *_slower(predictions)]


def _reach(predictions: list[Prediction]) -> str:
    good = [*takewhile(lambda one: one.efficiency.value >= UNLIMITED_EFFICIENCY, predictions)]
    reached = good[-1].ranks if good else 1
    return f"Up to {reached} ranks, efficiency is at least {UNLIMITED_EFFICIENCY:.0%}." if reached > 1 else ""


def _better_algorithm(job: Job, predictions: list[Prediction]) -> list[str]:
    """The first number of ranks from which another algorithm is better, and how much at the largest."""
    own = job.model.communication.algorithm
    for one in predictions:
        name = max(one.algorithms, key=lambda algorithm: one.algorithms[algorithm])
        if name != own and one.algorithms[name] > WORTH * one.images_per_s.value:
            last = predictions[-1]
            used = LIBRARY_NAMES.get(own, own)
            best = max(last.algorithms, key=lambda algorithm: last.algorithms[algorithm])
            speeds = f"{last.algorithms[best]:,.0f} instead of {last.images_per_s.value:,.0f} images/s"
            advice = f"use {ADVICE[best]}, for {speeds} on {last.ranks} ranks"
            return [f"From {one.ranks} ranks on, {used} is too slow: {advice}."]
    return []


def _slower(predictions: list[Prediction]) -> list[str]:
    """Where more ranks train less."""
    best = max(predictions, key=lambda one: one.images_per_s.value / one.slowdown)
    if best is predictions[-1]:
        return []
    return [f"More than {best.ranks} ranks train no faster."]
