"""The phase that the main thread of this rank is in: loading rows, forward, backward, waiting for gradients, and so on.

The loop, the learners and the groups say where a phase begins (`phases.begin(FORWARD)`); the watchdog, the step times,
the heartbeats and the timeline read it. Standard library only.

In the steps of `--timeline`, phases are also recorded: a step is cut into parts without a gap, each of which begins
where the one before ends. Frameworks that only queue work are then waited for at each of these points, so that a part
has the time of its own work, and not that of the queue.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar


@dataclass(frozen=True, eq=False)
class Phase:
    """A phase of a rank's training."""

    name: str
    """As a timeline and its summary show it; several phases may share one."""
    in_step: bool = False
    """Whether its time belongs to a training step."""
    waits: bool = False
    """Whether a rank in it computes its step in the framework, or waits for other ranks: it holds up nobody else."""
    uses_folder: bool = False
    """Whether a rank in it reads and writes the run's folder, which may be slow."""


START = Phase("start", uses_folder=True)
DATA = Phase("data", in_step=True)
"""Waiting for rows."""
FORWARD = Phase("forward", in_step=True, waits=True)
SCRIPT_FORWARD = Phase("forward", in_step=True)
"""A script's own code from a batch to its losses."""
BACKWARD = Phase("backward", in_step=True, waits=True)
GRADIENTS = Phase("gradients", in_step=True, waits=True)
"""Waiting for the gradients of all ranks."""
UPDATE = Phase("update", in_step=True, waits=True)
STEP = Phase("step", in_step=True, waits=True)
"""Forward, backward, gradients and update in one, where they cannot be told apart."""
FIT = Phase("fit", in_step=True, waits=True)
"""What a framework's own loop does."""
SCRIPT = Phase("script", in_step=True)
"""A script's own code between its calls."""
LOOP = Phase("loop", in_step=True)
FINISHING = Phase("logging", in_step=True, waits=True)
"""At a logging step: waiting until the framework has computed all steps."""
JOINING = Phase("logging", waits=True)
"""At a logging step: the sum over all ranks."""
LOGGING = Phase("logging", uses_folder=True)
RENEWING = Phase("change of ranks", waits=True)
"""Connecting with the ranks that are left, or have joined."""
CHECKPOINT = Phase("checkpoint", uses_folder=True)
EVALUATION = Phase("evaluation", waits=True)
EVALUATION_DATA = Phase("evaluation")
"""Waiting for rows of the test data."""
RESULT = Phase("result", uses_folder=True)


class Span(NamedTuple):
    """What a thread did from one time to another; in ns of this host's monotonic clock."""

    name: str
    begin: int
    end: int


class StepSpans(NamedTuple):
    """One step of this rank: its number, and its parts in order, each of which begins where the last one ended."""

    step: int
    parts: list[Span]

    @property
    def begin(self) -> int:
        return self.parts[0].begin

    @property
    def end(self) -> int:
        return self.parts[-1].end


class Phases:
    """The phase of this process, how long each phase took, and while it `is_recording` the phases of each step."""

    between = LOOP
    """The phase in which a step begins, and which runs while a framework's own loop or a script has a batch."""
    is_leaving = False
    """Whether a script has left its loop before the end: the rank then waits for the others to do so as well."""
    is_recording = False
    wait: Callable[[], object] | None = None
    """Waits until the framework has computed what it was asked for; None where it computes at once."""

    def __init__(self) -> None:
        self.current, self._since = START, time.perf_counter()
        self._seconds: dict[Phase, float] = defaultdict(float)
        self._in_collective = False
        self._on_step_time: Callable[[bool], None] | None = None
        self._steps: list[StepSpans] = []
        self._marks: list[tuple[str, int]] = []

    def start_run(self, between: Phase, on_step_time: Callable[[bool], None]) -> None:
        """Begin a run of this process, which may have made others before.

        on_step_time: called when the time of steps begins (True), and when something else begins (False).
        """
        self.is_leaving = self.is_recording = False
        self.between, self._on_step_time, self.wait = between, on_step_time, None
        self._seconds.clear()
        self.begin(START)

    def begin(self, phase: Phase) -> None:
        """The current phase ends here, and this one begins."""
        before = self.current
        if self.is_recording:
            self._drain()
            self._marks.append((phase.name, now()))
        elif phase is before:
            return
        at = time.perf_counter()
        self._seconds[before] += at - self._since
        self.current, self._since = phase, at
        if phase.in_step is not before.in_step and self._on_step_time:
            self._on_step_time(phase.in_step)

    @property
    def waits(self) -> bool:
        """Whether this rank computes its step or waits for other ranks; for any thread."""
        return self._in_collective or self.current.waits

    def seconds(self, *phases: Phase) -> float:
        """The time spent in these phases since the run began."""
        current = time.perf_counter() - self._since if self.current in phases else 0.0
        return current + sum(self._seconds[phase] for phase in phases)

    def record(self) -> None:
        """Record from here on: the next step begins now."""
        self._steps = []
        self._drain()
        self._marks = [(self.between.name, now())]
        self.is_recording = True

    def stop_recording(self) -> list[StepSpans]:
        """End the recording; the steps that have ended."""
        self.is_recording = False
        return self._steps

    def end_step(self, step: int) -> None:
        """The recorded step with this number ends here, and the next one begins."""
        self._drain()
        end = now()
        marks, self._marks = self._marks, [(self.between.name, end)]
        self._steps.append(StepSpans(step, _spans(marks, end)))

    def _drain(self) -> None:
        if self.wait:
            self.wait()


def now() -> int:
    """This host's monotonic clock, in ns; the same for all its processes."""
    return time.monotonic_ns()


def _spans(marks: list[tuple[str, int]], end: int) -> list[Span]:
    """The parts that begin at these marks; neighbors of the same name are one, and empty ones are left out."""
    spans: list[Span] = []
    ends = [begin for _, begin in marks[1:]] + [end]
    for (name, begin), until in zip(marks, ends, strict=True):
        if spans and spans[-1].name == name:
            spans[-1] = spans[-1]._replace(end=until)
        elif until > begin:
            spans.append(Span(name, begin, until))
    return spans or [Span(LOOP.name, end, end)]


phases = Phases()
"""Of this process, which trains one run at a time."""

Collective = TypeVar("Collective", bound=Callable[..., Any])


def collective(method: Collective) -> Collective:
    """Mark a method of a group in which this rank waits for other ranks, whatever phase it is in."""

    @functools.wraps(method)
    def waiting(*args: Any) -> Any:
        outer, phases._in_collective = phases._in_collective, True
        try:
            return method(*args)
        finally:
            phases._in_collective = outer

    return waiting  # type: ignore[return-value]
