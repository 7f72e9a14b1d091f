"""A timeline in words: what the steps waited for, and on which rank."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hvdtrain.runs.timeline.trace_file import RankSteps
from hvdtrain.system.phases import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    EVALUATION,
    FIT,
    FORWARD,
    GRADIENTS,
    LOGGING,
    LOOP,
    SCRIPT,
    STEP,
    UPDATE,
    StepSpans,
)

WORDS = {
    DATA.name: "waiting for data",
    FORWARD.name: "forward",
    BACKWARD.name: "backward",
    GRADIENTS.name: "waiting for gradients",
    UPDATE.name: "update",
    STEP.name: "forward to update",
    FIT.name: "the framework's loop",
    SCRIPT.name: "the script",
    LOOP.name: "hvdtrain's loop",
    LOGGING.name: "logging",
    CHECKPOINT.name: "checkpoint",
    EVALUATION.name: "evaluation",
}
"""What each part is called."""
JOINS = {
    GRADIENTS.name: "with its gradients",
    BACKWARD.name: "to begin backward",
    STEP.name: "to begin it",
    FIT.name: "to begin it",
}
"""At the first of these parts that a step has, ranks wait for each other: what the last of them was last with."""
MIN_SHARE = 0.01
"""Of the time, to be mentioned."""
JOINT = {GRADIENTS.name, LOGGING.name, EVALUATION.name}
"""Parts in which ranks wait for each other."""
NOTABLE_SHARE, NOTABLE_PART = 0.05, 0.6
"""Of the time that the others wait for a rank, and of all waiting that it causes, from which on it is named."""


class Late(NamedTuple):
    """The last rank of one step."""

    place: int
    """Its place in the list of ranks."""
    waited_s: float
    """How long the other ranks waited for it, their mean."""


def summary(ranks: Sequence[RankSteps], error_s: float = 0.0) -> list[str]:
    """Sentences about the steps of all ranks. error_s: how exact the ranks' clocks are known."""
    steps = _common_steps(ranks)
    if not steps:
        return ["no step was recorded"]
    mean = statistics.fmean(_s(of_rank.end - of_rank.begin) for step in steps for of_rank in step)
    first, last = steps[0][0].step, steps[-1][0].step
    which = f"steps {first} to {last} took {_time(mean)} each" if last > first else f"step {first} took {_time(mean)}"
    about_last = [_about_last(ranks, steps, _late(steps, error_s), mean)] if len(ranks) > 1 else []
    return [f"{which}: {_shares(steps)}", *about_last]


def _common_steps(ranks: Sequence[RankSteps]) -> list[list[StepSpans]]:
    """The steps that all ranks have: of each, that of each rank."""
    by_number = [{step.step: step for step in rank.steps} for rank in ranks]
    numbers = sorted(set.intersection(*map(set, by_number))) if by_number else []
    return [[of_rank[number] for of_rank in by_number] for number in numbers]


def _s(ns: float) -> float:
    return ns / 1e9


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _length(step: StepSpans, name: str) -> float:
    """Seconds of the step's parts of that name."""
    return _s(sum(part.end - part.begin for part in step.parts if part.name == name))


def _join_part(steps: list[list[StepSpans]]) -> str | None:
    """The part at which ranks wait for each other."""
    names = {part.name for step in steps for of_rank in step for part in of_rank.parts}
    return next((name for name in JOINS if name in names), None)


def _arrival(step: StepSpans, join: str) -> int | None:
    """When a rank came to that part in a step, for the last time if there are several."""
    return max((part.begin for part in step.parts if part.name == join), default=None)


def _late(steps: list[list[StepSpans]], error_s: float) -> list[Late | None]:
    """The last rank of each step; None where the clocks are not exact enough to tell, or a rank has no such part."""
    join = _join_part(steps)
    late: list[Late | None] = []
    for step in steps:
        arrivals = [_arrival(of_rank, join) if join else None for of_rank in step]
        times = [at for at in arrivals if at is not None]
        if len(times) < len(step):
            late.append(None)
            continue
        place = max(range(len(times)), key=times.__getitem__)
        others = times[:place] + times[place + 1 :]
        certain = _s(times[place] - max(others)) >= error_s
        late.append(Late(place, _s(times[place] - statistics.fmean(others))) if certain else None)
    return late


def _shares(steps: list[list[StepSpans]]) -> str:
    """The parts and their shares of the time, over all ranks, the longest first."""
    lengths: Counter[str] = Counter()
    for of_rank in itertools.chain(*steps):
        for part in of_rank.parts:
            lengths[part.name] += part.end - part.begin
    total = sum(lengths.values()) or 1
    shares = [(name, length / total) for name, length in lengths.most_common() if length / total >= MIN_SHARE]
    return ", ".join(f"{WORDS.get(name, name)} {share:.0%}" for name, share in shares)


def _about_last(
    ranks: Sequence[RankSteps], steps: list[list[StepSpans]], late: list[Late | None], step_s: float
) -> str:
    """Which rank the others waited for, and in which part it is slower than they are."""
    known = [last for last in late if last]
    if not known:
        return "which rank was last cannot be told: the clocks are not known exactly enough"
    counts = Counter(last.place for last in known)
    waited = {place: sum(last.waited_s for last in known if last.place == place) for place in counts}
    slowest = max(waited, key=waited.__getitem__)
    each = waited[slowest] / len(late)
    words = JOINS[_join_part(steps) or GRADIENTS.name]
    if each < NOTABLE_SHARE * step_s or waited[slowest] < NOTABLE_PART * sum(waited.values()):
        counted = ", ".join(f"rank {ranks[index].rank} in {count}" for index, count in sorted(counts.items()))
        mean = _time(sum(waited.values()) / len(late))
        return f"no rank stands out: the last one came {mean} after the others on average ({counted} steps)"
    host = f" on {ranks[slowest].host}" if ranks[slowest].host else ""
    text = (
        f"rank {ranks[slowest].rank}{host} was the last {words} in {counts[slowest]} of {len(late)} steps: "
        f"the others waited {_time(each)} for it in each, {each / step_s:.0%} of the time"
    )
    name, own_s, others_s = _slowest_part(slowest, steps)
    if own_s - others_s < each / 2:
        return text
    return f"{text}; {WORDS.get(name, name)} took it {_time(own_s)}, other ranks {_time(others_s)}"


def _slowest_part(place: int, steps: list[list[StepSpans]]) -> tuple[str, float, float]:
    """The part in which a rank exceeds the median of the others the most; its mean seconds, and theirs."""
    names = {part.name for step in steps for part in step[place].parts} - JOINT
    excesses = []
    for name in sorted(names):
        means = [statistics.fmean(_length(step[other], name) for step in steps) for other in range(len(steps[0]))]
        others = statistics.median(means[:place] + means[place + 1 :])
        excesses.append((means[place] - others, name, means[place], others))
    return max(excesses, default=(0.0, LOOP.name, 0.0, 0.0))[1:]
