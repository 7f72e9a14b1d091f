"""Timelines of steps (`--timeline`): when each rank records, and the spans of all ranks on one clock, with a summary.

The file is in Chrome's trace event format, which Perfetto and chrome://tracing open. Each rank is a process, whose
track is the main thread: steps, and in them their parts.

Of the clocks is known how far each differs from rank 0's, and how exactly. An allreduce ends on no rank before it has
begun on every rank. With the times when it began and ended on each, that gives bounds of the difference between two
clocks, without an assumption about the network:

    begin(rank) - end(0)  <=  clock(rank) - clock(0)  <=  end(rank) - begin(0)

The tightest bounds of several allreduces count, as in Cristian's algorithm (Probabilistic clock synchronization, 1989).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.config.forms import StepRange
from hvdtrain.frameworks.arithmetic import waiter
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.console import log
from hvdtrain.system import rank_info
from hvdtrain.system.files import write_atomically
from hvdtrain.system.phases import (
    BACKWARD,
    EVALUATION,
    FIT,
    GRADIENTS,
    LOGGING,
    LOOP,
    STEP,
    Span,
    StepSpans,
    now,
    phases,
)
from hvdtrain.system.text import to_json
from hvdtrain.training.observer import Observer, Pause
from hvdtrain.training.run import RunContext

MIN_THREAD = 1000
"""Perfetto takes thread 0, and one with the number of a process, for something else, and joins those of one number."""


class RankSteps(NamedTuple):
    """What a rank recorded, by rank 0's clock."""

    rank: int
    host: str
    steps: list[StepSpans]


def trace(ranks: list[RankSteps], about: dict[str, Any]) -> dict[str, Any]:
    """The content of the file; about: what else to tell, as JSON values."""
    zero = min((rank.steps[0].begin for rank in ranks if rank.steps), default=0)
    first_thread = max([MIN_THREAD, *(rank.rank + 1 for rank in ranks)])
    events = [event for rank in ranks for event in _events(rank, first_thread + rank.rank, zero)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _events(rank: RankSteps, thread: int, zero: int) -> Iterator[dict[str, Any]]:
    where = {"pid": rank.rank, "tid": thread}
    title = f"rank {rank.rank} ({rank.host})" if rank.host else f"rank {rank.rank}"
    for kind, name, index in (("process", title, rank.rank), ("thread", "main thread", thread)):
        yield {"name": f"{kind}_name", "ph": "M", **where, "args": {"name": name}}
        yield {"name": f"{kind}_sort_index", "ph": "M", **where, "args": {"sort_index": index}}
    for step in rank.steps:
        spans = [(f"step {step.step}", "step", step.begin, step.end)]
        spans += [(part.name, "part", part.begin, part.end) for part in step.parts]
        for name, category, begin, end in spans:
            times = {"ts": (begin - zero) / 1000, "dur": (end - begin) / 1000}
            yield {"name": name, "cat": category, "ph": "X", **times, **where, "args": {"step": step.step}}


JOINS = (GRADIENTS.name, BACKWARD.name, STEP.name, FIT.name)
"""At the first of these parts that a step has, ranks wait for each other."""
JOINT = {GRADIENTS.name, LOGGING.name, EVALUATION.name}
"""Parts in which a rank's time depends on the others."""
MIN_SHARE = 0.01
"""Of the time, to be mentioned."""


def summary(ranks: Sequence[RankSteps], error_s: float = 0.0) -> list[str]:
    """Sentences about the steps of all ranks. error_s: how exact the ranks' clocks are known."""
    steps = _common_steps(ranks)
    if not steps:
        return ["no step was recorded"]
    mean = statistics.fmean(_s(of_rank.end - of_rank.begin) for step in steps for of_rank in step)
    first, last = steps[0][0].step, steps[-1][0].step
    which = f"steps {first} to {last} took {_time(mean)} each" if last > first else f"step {first} took {_time(mean)}"
    return [f"{which}: {_shares(steps)}", *([_about_last(ranks, steps, error_s, mean)] if len(ranks) > 1 else [])]


def _common_steps(ranks: Sequence[RankSteps]) -> list[list[StepSpans]]:
    """The steps that all ranks have: of each, that of each rank."""
    by_number = [{step.step: step for step in rank.steps} for rank in ranks]
    numbers = sorted(set.intersection(*map(set, by_number))) if by_number else []
    return [[of_rank[number] for of_rank in by_number] for number in numbers]


def _s(ns: float) -> float:
    return ns / 1e9


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _shares(steps: list[list[StepSpans]]) -> str:
    """The parts and their shares of the time, over all ranks, the longest first."""
    lengths: Counter[str] = Counter()
    for part in itertools.chain.from_iterable(of_rank.parts for step in steps for of_rank in step):
        lengths[part.name] += part.end - part.begin
    total = sum(lengths.values()) or 1
    shares = [(name, length / total) for name, length in lengths.most_common() if length / total >= MIN_SHARE]
    return ", ".join(f"{name} {share:.0%}" for name, share in shares)


def _late(step: list[StepSpans], join: str, error_s: float) -> tuple[int, float] | None:
    """The place of the last rank at that part of a step, and the mean seconds for which the others waited for it.

    None where the clocks cannot tell, or a rank has no such part.
    """
    arrivals = [[part.begin for part in of_rank.parts if part.name == join] for of_rank in step]
    if not all(arrivals):
        return None
    times = [max(of_rank) for of_rank in arrivals]
    place = max(range(len(times)), key=times.__getitem__)
    others = times[:place] + times[place + 1 :]
    waited_s = _s(times[place] - statistics.fmean(others))
    return (place, waited_s) if _s(times[place] - max(others)) >= error_s else None


def _about_last(ranks: Sequence[RankSteps], steps: list[list[StepSpans]], error_s: float, step_s: float) -> str:
    """The rank for which the others waited most, and the part in which it is slower than they are."""
    names = {part.name for step in steps for of_rank in step for part in of_rank.parts}
    join = next((name for name in JOINS if name in names), "")
    known = [late for step in steps if (late := _late(step, join, error_s))]
    if not known:
        return "which rank was last cannot be told: the clocks are not known exactly enough"
    counts = Counter(place for place, _ in known)
    waited = {place: sum(waited_s for last, waited_s in known if last == place) for place in counts}
    last = max(waited, key=waited.__getitem__)
    each, rank = waited[last] / len(steps), ranks[last]
    text = (
        f"rank {rank.rank}{f' on {rank.host}' if rank.host else ''} was the last to begin {join} in {counts[last]} "
        f"of {len(steps)} steps: the others waited {_time(each)} for it in each, {each / step_s:.0%} of the time"
    )
    name, own_s, others_s = _slowest_part(last, steps)
    is_why = own_s > others_s and own_s - others_s >= each / 2
    return f"{text}; {name} took it {_time(own_s)}, other ranks {_time(others_s)}" if is_why else text


def _slowest_part(place: int, steps: list[list[StepSpans]]) -> tuple[str, float, float]:
    """The part in which a rank exceeds the median of the others the most; its mean seconds, and theirs."""

    def mean(rank: int, name: str) -> float:
        parts = (part for step in steps for part in step[rank].parts if part.name == name)
        return _s(sum(part.end - part.begin for part in parts)) / len(steps)

    others = [rank for rank in range(len(steps[0])) if rank != place]
    names = sorted({part.name for step in steps for part in step[place].parts} - JOINT) or [LOOP.name]
    times = [(name, mean(place, name), statistics.median(mean(rank, name) for rank in others)) for name in names]
    return max(times, key=lambda time: time[1] - time[2])


ROUNDS = 30
"""Allreduces whose times are compared."""


class RoundTimes(NamedTuple):
    clock: str
    """Identifies the clock: ranks with the same text read the same one."""
    begins: list[int]
    ends: list[int]
    """When each allreduce began and ended, in ns of this rank's clock."""


class Offset(NamedTuple):
    """A rank's clock minus rank 0's, in ns, and by how much that may be wrong."""

    ns: float
    error_ns: float


class ClockReading(NamedTuple):
    """The offsets of all ranks at a time of rank 0's clock."""

    at: int
    offsets: list[Offset]


def read_clocks(group: Group) -> ClockReading:
    """Measure how the ranks' clocks differ now; call it on every rank."""
    begins, ends = [], []
    for _ in range(ROUNDS if group.size > 1 else 0):
        begins.append(now())
        group.sum(np.zeros(1))
        ends.append(now())
    ranks: list[RoundTimes] = [RoundTimes(*times) for times in group.gather((_clock(), begins, ends))]
    return ClockReading(now(), [offset(ranks[0], rank) for rank in ranks])


def offset(first: RoundTimes, rank: RoundTimes) -> Offset:
    """How far a rank's clock differs from that of rank 0, `first`."""
    if rank.clock == first.clock:
        return Offset(0, 0)
    least = max(begin - end for begin, end in zip(rank.begins, first.ends, strict=True))
    most = min(end - begin for end, begin in zip(rank.ends, first.begins, strict=True))
    return Offset((least + most) / 2, abs(most - least) / 2)


def _clock() -> str:
    """The host since it was started, and the namespace of its clock; unique where that cannot be found out."""
    with contextlib.suppress(OSError):
        boot, namespace = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), Path("/proc/self/ns/time")
        return f"{boot} {os.readlink(namespace) if namespace.is_symlink() else ''}"
    return uuid.uuid4().hex


class ClockLine:
    """A rank's clock against rank 0's, between a reading before the steps and one after them: clocks drift."""

    def __init__(self, rank: int, before: ClockReading, after: ClockReading) -> None:
        self._offsets = [reading.offsets[rank].ns for reading in (before, after)]
        self._times = [reading.at + ns for reading, ns in zip((before, after), self._offsets, strict=True)]
        self.error_ns = max(reading.offsets[rank].error_ns for reading in (before, after))
        self.offset_ns = self._offsets[0]

    def to_rank_0(self, time: int) -> float:
        return time - float(np.interp(time, self._times, self._offsets))


class Tracing(Observer):
    """The timeline of a run with --timeline. show: prints a line on rank 0, and writes it to each rank's log."""

    def __init__(self, run: RunContext, show: Callable[[str], None]) -> None:
        self._run, self._show = run, show
        self.steps: StepRange | None = StepRange.parse(run.runtime.timeline)
        """The steps that are still to be recorded; None if there are none (left)."""
        self._done = -1

    def started(self, at: Position) -> None:
        """Steps up to `at` are done: those of earlier processes, or of other ranks."""
        steps, learner, done = self.steps, self._run.learner, at.step
        if not steps:  # its file was written before the ranks changed
            return
        phases.wait = waiter(self._run.config.framework, learner.device)
        if done >= steps.last or steps.first >= self._run.last_step:
            self._give_up()
        else:
            self._after(done)

    def step_ended(self, at: Position) -> None:
        done = at.step
        if not self.steps or done == self._done:  # leaving an epoch before its end is not a step
            return
        self._done = done
        if phases.is_recording:
            phases.end_step(done - 1)
        self._after(done)

    def renewed(self, at: Position, pause: Pause) -> None:
        """What was recorded is of other ranks: all, also new ones, begin again with what is left of the steps."""
        phases.stop_recording()
        self._done = -1

    def ended(self, at: Position) -> None:
        if phases.is_recording:
            self._finish()
        elif self.steps:
            self._give_up()

    def _give_up(self) -> None:
        log.warning("--timeline %s: this job makes none of these steps, so there is no timeline", self.steps)
        self.steps = None

    def _after(self, done: int) -> None:
        assert self.steps
        if phases.is_recording and done >= self.steps.last:
            self._finish()
        elif not phases.is_recording and done >= self.steps.first:
            self._before = read_clocks(self._run.group)
            phases.record()

    def _finish(self) -> None:
        steps, group = phases.stop_recording(), self._run.group
        after = read_clocks(group)
        of_steps = [[step.step, [list(part) for part in step.parts]] for step in steps]  # values that every group sends
        gathered = group.gather([rank_info.host_name(), of_steps])
        if self._run.is_rank_0:
            try:
                self._write(gathered, after)
            except Exception as error:  # a timeline never ends a run
                log.warning("--timeline %s cannot be written (%s): training continues without it", self.steps, error)
        self.steps = None

    def _write(self, gathered: list[Any], after: ClockReading) -> None:
        numbers = self._run.group.ranks
        lines = [ClockLine(place, self._before, after) for place in range(len(gathered))]
        ranks = [
            RankSteps(rank, host, [_on_clock(number, parts, line) for number, parts in steps])
            for rank, (host, steps), line in zip(numbers, gathered, lines, strict=True)
        ]
        texts = summary(ranks, max(line.error_ns for line in lines) / 1e9)
        assert self.steps
        recorded = [step.step for step in ranks[0].steps]  # not all, of a job that begins or ends within them
        steps = StepRange(recorded[0], recorded[-1] + 1) if recorded else self.steps
        path = self._run.folder / f"timeline-{steps.first}-{steps.last}.json"
        for text in texts:
            self._show(f"timeline: {text}")
        clocks = [{"rank": rank, "offset_s": line.offset_ns / 1e9, "error_s": line.error_ns / 1e9}
                  for rank, line in zip(numbers, lines, strict=True)]  # fmt: skip
        write_atomically(path, to_json(trace(ranks, {"summary": texts, "clocks": clocks})))
        self._show(f"timeline: {path}; open it at https://ui.perfetto.dev or chrome://tracing")


def _on_clock(number: int, parts: list[Any], line: ClockLine) -> StepSpans:
    """A step by rank 0's clock. parts: `Span`s as lists."""
    spans = [Span(name, round(line.to_rank_0(begin)), round(line.to_rank_0(end))) for name, begin, end in parts]
    return StepSpans(number, spans)
