"""Speed, efficiency, time and cost of N ranks, with a range and with what limits them.

The share of time that checkpoints, failures and restarts take: Young, A first order approximation to the optimum
checkpoint interval, CACM 17(9), 1974; Daly, A higher order estimate of the optimum checkpoint interval for restart
dumps, FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hvdtrain.measure.scale.step import StepModel, StepTime

MIN_ERROR = 0.05
"""Relative uncertainty of communication at least: what the model leaves out, such as other traffic."""
DOUBLING_ERROR = 0.05
"""Additional uncertainty for each doubling of the number of ranks beyond those measured."""
SPREAD_FACTORS = (0.5, 1.5)
"""Range of the spread of step times, which is estimated from few intervals."""
UNLIMITED_EFFICIENCY = 0.95
"""From this efficiency on, nothing but computation is said to limit a job."""
ALTERNATIVES = ("ring", "mpi", "hierarchical")
"""Allreduces to compare with: keys of ALGORITHMS or CHOICES, the simplest first."""


@dataclass(frozen=True)
class Reliability:
    """How often hosts fail, and what that costs."""

    host_mtbf_s: float
    """Mean time between the failures of one host; infinite for hosts that never fail."""
    checkpoint_s: float
    """Time to write a checkpoint."""
    restart_s: float
    """Time from a failure to the first new step."""


@dataclass(frozen=True)
class Job:
    """What is predicted."""

    model: StepModel
    scaling: Literal["weak", "strong"]
    global_batch: float
    """For strong scaling: images of a step over all ranks."""
    reliability: Reliability
    images: float
    """Images of the whole training; 0 if unknown."""
    price_per_host_hour: float = 0.0

    def rows(self, ranks: int) -> float:
        """Images of a step of one rank; the fullest rank, where they cannot be divided equally."""
        return self.model.workload.rows if self.scaling == "weak" else math.ceil(self.global_batch / ranks)

    def images_per_step(self, ranks: int) -> float:
        """Images of a step of all ranks."""
        return self.rows(ranks) * ranks if self.scaling == "weak" else self.global_batch


class Range(NamedTuple):
    """A predicted value between its limits."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """A job on N ranks."""

    ranks: int
    hosts: int
    rows: float
    """Images per step of one rank."""
    step: StepTime
    images_per_s: Range
    """While it trains: without checkpoints, failures and restarts."""
    efficiency: Range
    """images_per_s / (ranks * images_per_s of one rank)."""
    checkpoint_interval_s: float
    slowdown: float
    """Wall-clock time divided by training time, because of checkpoints, failures and restarts."""
    hours: float
    """Of the whole training; NaN if its number of images is unknown."""
    cost: float
    """In the currency of the price per hour; NaN if there is none."""
    limited_by: str
    """The part of a step that costs most, besides computation."""
    algorithms: dict[str, float]
    """Predicted images/s with other allreduces over the same links, by the names in ALTERNATIVES."""


def predict(job: Job, ranks: int) -> Prediction:
    """The job on `ranks` ranks."""
    model, rows, images = job.model, job.rows(ranks), job.images_per_step(ranks)
    step = model.step(ranks, rows)
    speed = Range(
        *(
            images / variant.step(ranks, rows).seconds
            for variant in (_pessimistic(model, ranks), model, _optimistic(model, ranks))
        )
    )
    base = job.images_per_step(1) / model.step(1, job.rows(1)).seconds
    hosts = model.communication.cluster(ranks).hosts
    lost = slowdown(job.reliability, hosts)
    hours = job.images / speed.value * lost / 3600 if job.images else math.nan
    return Prediction(
        ranks=ranks,
        hosts=hosts,
        rows=rows,
        step=step,
        images_per_s=speed,
        efficiency=Range(*(value / (ranks * base) for value in speed)),
        checkpoint_interval_s=checkpoint_interval(job.reliability, hosts),
        slowdown=lost,
        hours=hours,
        cost=hours * hosts * job.price_per_host_hour if job.price_per_host_hour else math.nan,
        limited_by=_limit(job, step, speed.value / (ranks * base), lost),
        algorithms={name: images / model.by(name).step(ranks, rows).seconds for name in ALTERNATIVES},
    )


def uncertainty(model: StepModel, ranks: int) -> float:
    """Relative uncertainty of communication: of the fit, and of ranks beyond those measured."""
    fit = model.communication.used(ranks)
    doublings = math.log2(ranks / fit.most_ranks) if 0 < fit.most_ranks < ranks else 0.0
    return max(fit.error, MIN_ERROR) + DOUBLING_ERROR * doublings


def _optimistic(model: StepModel, ranks: int) -> StepModel:
    communication = replace(model.communication, factor=1 / (1 + uncertainty(model, ranks)))
    overlap = 1.0 if model.overlap else 0.0
    return replace(model, communication=communication, overlap=overlap, spread_factor=SPREAD_FACTORS[0])


def _pessimistic(model: StepModel, ranks: int) -> StepModel:
    communication = replace(model.communication, factor=1 + uncertainty(model, ranks))
    return replace(model, communication=communication, overlap=0.0, spread_factor=SPREAD_FACTORS[1])


NAMES = {
    "input": "input",
    "stragglers": "the slowest rank",
    "packing": "packing of gradients",
    "control": "the cost of a call",
    "latency": "latency of the allreduce",
    "transfer": "bandwidth of the allreduce",
}


def _limit(job: Job, step: StepTime, efficiency: float, lost: float) -> str:
    losses = {name: getattr(step, part) for part, name in NAMES.items()}
    if job.model.communication.coordination:
        losses["Horovod's control plane"] = losses.pop(NAMES["control"])
    losses["failures and checkpoints"] = (lost - 1) * step.seconds
    if job.scaling == "strong":  # a small batch computes less efficiently
        losses["the small batch of a rank"] = max(1 / efficiency - 1, 0) * step.compute - sum(losses.values())
    name = max(losses, key=lambda part: losses[part])
    return "computation" if efficiency / lost >= UNLIMITED_EFFICIENCY else name


def predict_all(job: Job, ranks: Sequence[int]) -> list[Prediction]:
    """Predictions in ascending order of ranks."""
    return [predict(job, number) for number in sorted(set(ranks))]


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
