"""Records what the main thread of this rank does in the steps of `--timeline`; nothing else than the standard library.

A step is cut into parts without a gap: a part begins where the one before ends, and the learner and the loop say where
with `recorder.part(NAME)`. Frameworks that only queue work are waited for at each of these points, so that a part has
the time of its own work, and not that of the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

DATA, FORWARD, BACKWARD, GRADIENTS, UPDATE = "data", "forward", "backward", "gradients", "update"
LOOP, LOGGING, CHECKPOINT, EVALUATION, SCRIPT = "loop", "logging", "checkpoint", "evaluation", "script"
FIT = "fit"
"""The parts: waiting for rows, forward, backward, waiting for the gradients of all ranks, update; the loop's own work,
logging, writing a checkpoint, evaluation, a script's own code between its calls; what a framework's own loop does."""
STEP = "step"
"""Forward, backward, gradients and update in one, where they cannot be told apart."""


class Span(NamedTuple):
    """What a thread did from one time to another; in ns of this host's monotonic clock."""

    name: str
    begin: int
    end: int


class StepSpans(NamedTuple):
    """One step of this rank: its number, and its parts in order, each of which begins where the last one ended."""

    step: int
    parts: list[Span]
    enqueued: list[tuple[str, int]]
    """Name of each message, and when this rank gave its gradients to Horovod."""

    @property
    def begin(self) -> int:
        """When its first part began."""
        return self.parts[0].begin

    @property
    def end(self) -> int:
        """When its last part ended."""
        return self.parts[-1].end


class Recorder:
    """The steps of this process, as long as it is `on`. When it is off, callers only read that attribute."""

    on = False
    between = LOOP
    """The part in which a step begins, and which runs while a framework's own loop or a script has a batch."""
    wait: Callable[[], object] | None = None
    """Waits until the framework has computed what it was asked for; None where it computes at once."""

    def __init__(self) -> None:
        self.steps: list[StepSpans] = []
        self._marks: list[tuple[str, int]] = []
        self._enqueued: list[tuple[str, int]] = []

    def start(self) -> None:
        """Record from here on: the next step begins now."""
        self.steps, self._enqueued = [], []
        self._drain()
        self._marks = [(self.between, now())]
        self.on = True

    def stop(self) -> list[StepSpans]:
        """End the recording; the steps that have ended."""
        self.on = False
        return self.steps

    def part(self, name: str) -> None:
        """The part that runs ends here, and this one begins."""
        self._drain()
        self._marks.append((name, now()))

    def parts_at(self, marks: Iterable[tuple[str, int]]) -> None:
        """Parts whose beginnings were measured elsewhere, in their order: names, and times in ns."""
        latest, end = self._marks[-1][1], now()
        for name, begin in marks:
            latest = min(max(begin, latest), end)  # a clock that was set back or forward in between makes no overlap
            self._marks.append((name, latest))

    def enqueued(self, message: str) -> None:
        """This rank's gradients of a message are given to Horovod now; any thread may call it."""
        self._enqueued.append((message, now()))

    def end_step(self, step: int) -> None:
        """The step with this number ends here, and the next one begins."""
        self._drain()
        end = now()
        marks, self._marks = self._marks, [(self.between, end)]
        messages, self._enqueued = self._enqueued, []
        self.steps.append(StepSpans(step, _spans(marks, end), messages))

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
    return spans or [Span(LOOP, end, end)]


recorder = Recorder()
"""Of this process, which trains one run at a time."""
