"""A timeline in words: what the steps waited for, and on which rank."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hvdtrain.runs.timeline.horovod_events import Message, RankSteps
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
LONG = 1.5
"""Multiple of the median step from which on a step is mentioned."""


class Late(NamedTuple):
    """The last rank of one step."""

    place: int
    """Its place in the list of ranks."""
    waited_s: float
    """How long the other ranks waited for it, their mean."""


def summary(
    ranks: Sequence[RankSteps], messages: Sequence[Message] = (), normal_s: float | None = None, error_s: float = 0.0
) -> list[str]:
    """Sentences about the steps of all ranks.

    normal_s: how long steps take that are not recorded; None if that is not known. error_s: how exact the ranks' clocks
    are known.
    """
    steps = _common_steps(ranks)
    if not steps:
        return ["no step was recorded"]
    times = [statistics.fmean(_s(of_rank.end - of_rank.begin) for of_rank in step) for step in steps]
    first, last, mean = steps[0][0].step, steps[-1][0].step, statistics.fmean(times)
    which = f"steps {first} to {last} took {_time(mean)} each" if last > first else f"step {first} took {_time(mean)}"
    late = _late(steps, error_s) if len(ranks) > 1 else []
    lines = [f"{which}: {_shares(steps, late)}"]
    if len(ranks) > 1:
        lines.append(_about_last(ranks, steps, late, mean))
    lines += _about_longest(ranks, steps, times) + _about_messages(messages, len(steps))
    if normal_s:
        lines.append(f"steps before, which were not recorded, took {_time(normal_s)} each")
    return lines


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


def _shares(steps: list[list[StepSpans]], late: list[Late | None]) -> str:
    """The parts and their shares of the time, over all ranks, the longest first."""
    lengths: Counter[str] = Counter()
    for of_rank in itertools.chain(*steps):
        for part in of_rank.parts:
            lengths[part.name] += part.end - part.begin
    total = sum(lengths.values()) or 1
    texts = []
    for name, length in lengths.most_common():
        if length / total < MIN_SHARE:
            continue
        text = f"{WORDS.get(name, name)} {length / total:.0%}"
        if name == GRADIENTS.name and any(late):
            waited = _waited_for_last(steps) / total
            text += f" ({waited:.0%} until the last rank had its own)"
        texts.append(text)
    return ", ".join(texts)


def _waited_for_last(steps: list[list[StepSpans]]) -> int:
    """Nanoseconds, of all ranks, in which they waited for gradients that the last rank had not computed yet."""
    waited = 0
    for step in steps:
        last = max((_arrival(of_rank, GRADIENTS.name) or of_rank.begin for of_rank in step), default=0)
        for of_rank in step:
            waits = [part for part in of_rank.parts if part.name == GRADIENTS.name]
            waited += max(min(waits[-1].end, last) - waits[-1].begin, 0) if waits else 0
    return waited


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


def _about_longest(ranks: Sequence[RankSteps], steps: list[list[StepSpans]], times: list[float]) -> list[str]:
    """The longest step, if it is much longer than the others, and where its time went."""
    longest, median = max(range(len(times)), key=times.__getitem__), statistics.median(times)
    excess = times[longest] - median
    if len(times) < 3 or times[longest] < LONG * median:
        return []
    excesses: dict[tuple[str, int | None], float] = {}
    for index, rank in enumerate(ranks):
        for name in {part.name for part in steps[longest][index].parts}:
            more = _length(steps[longest][index], name) - statistics.median(
                _length(step[index], name) for step in steps
            )
            excesses[name, None if name in JOINT else rank.rank] = min(more, excesses.get((name, None), more))
    (name, number), more = max(excesses.items(), key=lambda item: item[1])
    text = f"step {steps[longest][0].step} took {_time(times[longest])}"
    if more < excess / 2:
        return [text]
    where = "" if number is None or len(ranks) == 1 else f" on rank {number}"
    return [f"{text}: {_time(more)} more than usual for {WORDS.get(name, name)}{where}"]


def _about_messages(messages: Sequence[Message], steps: int) -> list[str]:
    """How long Horovod's messages took."""
    if not messages:
        return []
    each = len(messages) / steps
    negotiation = statistics.median(
        _s(message.begin - min([message.negotiation, *message.given.values()])) for message in messages
    )
    allreduce = statistics.median(_s(message.end - message.begin) for message in messages)
    return [
        f"Horovod sent {each:.3g} message(s) in each step: the negotiation, from the gradients of the first rank until "
        f"all had theirs, took {_time(negotiation)}, the allreduce {_time(allreduce)} (medians)"
    ]
