"""Which method of --compression, and how many local steps, a job needs on a link: before anybody trains."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvdtrain.config.compression import FP16, NONE, POWERSGD, parse_method
from hvdtrain.measure.scale.algorithms import Link
from hvdtrain.measure.scale.communication import Communication, Fit
from hvdtrain.measure.scale.compression import PLAIN, Combining, packing_s
from hvdtrain.measure.scale.inputs import DEFAULT_OVERLAP, library
from hvdtrain.measure.scale.step import StepModel, StepTime
from hvdtrain.measure.scale.workload import Workload

METHODS = ("none", "fp16", "bf16", "int8", "powersgd:1", "powersgd:2")
SYNC_EVERY = (1, 8)
"""What is compared, unless options say otherwise."""
WORTH = 1.05
"""A method that changes more of the result is named if it is faster by this factor: the model is not more exact."""
INT8_CHANGE = 2
ROUNDING = {NONE: 0, "bf16": 1, "fp16": 1, "int8": INT8_CHANGE}
"""How much methods round."""
MEASURED_HERE = "packing takes as long as it was measured to take on this machine"
UNKNOWN_SHAPES = f"{POWERSGD} is left out, as its messages depend on the shapes of layers: give a run, or --model"


@dataclass(frozen=True)
class Compared:
    """A way to combine gradients, over some ranks."""

    ranks: int
    combining: Combining
    step: StepTime
    sent_bytes: float
    """Of a rank in a step, on average."""
    factor: float
    """How many times as fast a step is as without compression, each step combined."""

    @property
    def is_plain(self) -> bool:
        return self.combining == PLAIN


def step_on_link(
    workload: Workload,
    link: Link,
    ranks: int,
    library_name: str = "horovod-gloo",
    combining: Combining = PLAIN,
    sharing: float = 1.0,
) -> StepTime:
    """The step of `ranks` ranks, each on a host of its own behind `link`, with the workload's images a rank.

    library_name: a key of `inputs.NAMES`. sharing: how many times as long a rank computes and packs, as ranks that are
    on one machine in fact share its cores. The seconds of packing are measured on this machine.
    """
    of = library(library_name)
    network = Fit(link, call_s=0.0, error=0.0)
    communication = Communication(of.algorithm, network, network, 1, of.coordination)
    busy = replace(workload, fixed_s=workload.fixed_s * sharing, row_s=workload.row_s * sharing)
    model = with_combining(StepModel(busy, communication, DEFAULT_OVERLAP if of.overlaps else 0.0), combining)
    packing = model.packing_s
    return replace(model, packing_s=lambda ranks: sharing * packing(ranks)).step(ranks, workload.rows)


def with_combining(model: StepModel, combining: Combining) -> StepModel:
    """The same job with another method or other numbers of local steps."""
    return replace(
        model,
        combining=combining,
        packing_s=functools.partial(packing_s, combining.method, model.workload.arrays),
    )


def candidates(
    methods: Sequence[str], sync_every: Sequence[int], model: StepModel
) -> tuple[list[Combining], list[str]]:
    """What is compared, first without any, and notes on that. methods, sync_every: empty for all."""
    chosen = [parse_method(text) for text in methods or METHODS]
    known = [method for method in chosen if model.workload.shapes or method.name != POWERSGD]
    pairs = itertools.product(sorted(set(sync_every or SYNC_EVERY)), known)
    by_horovod = model.communication.coordination is not None
    made = [Combining(method, every) for every, method in pairs]
    possible = [combining for combining in made if combining.is_possible(by_horovod)]
    notes = [MEASURED_HERE] * any(one.method.name not in (NONE, FP16) for one in possible)
    return list(dict.fromkeys([PLAIN, *possible])), notes + [UNKNOWN_SHAPES] * (len(known) < len(chosen))


def compare(model: StepModel, ranks: int, rows: float, combinings: Sequence[Combining]) -> list[Compared]:
    """Predictions of the job with each of them. rows: images of a rank."""
    plain_s = with_combining(model, PLAIN).step(ranks, rows).seconds
    compared = []
    for combining in combinings:
        step = with_combining(model, combining).step(ranks, rows)
        sent = combining.sent_bytes(model.workload.arrays, ranks)
        factor = plain_s / step.seconds if step.seconds else 1.0
        compared.append(Compared(ranks, combining, step, sent, factor))
    return compared


def ranks_text(ranks: int) -> str:
    """A number of ranks, for titles and sentences."""
    return f"{ranks:,} ranks" if ranks > 1 else "1 rank"


def choice(compared: Sequence[Compared]) -> str:
    """The sentence that says which to choose: of those that only round, and of those that change the algorithm."""
    safe = _best([one for one in compared if one.combining.changes != "the algorithm"])
    best = _best(compared)
    names = [str(one.combining.method) for one in compared if one.combining.changes == "rounding"]
    rounding = f" ({', '.join(names)})" if names else ""
    text = f"For {ranks_text(safe.ranks)}, choose {safe.combining}"
    if safe.is_plain:
        text += f": what only rounds gradients{rounding} is not faster"
    else:
        text += f", {safe.factor:.1f} times as fast as {NONE}: it only rounds gradients{rounding}"
    if best.combining.changes != "the algorithm":
        return f"{text}."
    return (
        f"{text}. {best.combining} would be {best.factor:.1f} times as fast as {NONE}, but {POWERSGD} and "
        "--sync-every change the algorithm: compare the accuracy."
    )


def _best(compared: Sequence[Compared]) -> Compared:
    """The fastest; but one that changes more of the result only if it is faster by WORTH than what changes less."""
    best, *_ = (one for one in compared if one.is_plain)
    for _, group in itertools.groupby(sorted(compared, key=_change), key=_change):
        fastest = max(group, key=lambda one: one.factor)
        if fastest.factor > WORTH * best.factor:
            best = fastest
    return best


def _change(compared: Compared) -> int:
    """How much of the result it changes, in order: nothing, rounding, rounding more, and what is not rounding."""
    method, every = compared.combining
    others = (method.name == POWERSGD) + (every > 1)
    return INT8_CHANGE + others if others else ROUNDING.get(method.name, INT8_CHANGE)
