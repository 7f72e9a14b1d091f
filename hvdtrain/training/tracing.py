"""The steps of `--timeline`: when each rank starts and stops to record, and what becomes of the records."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hvdtrain.collectives.horovod import HorovodGroup
from hvdtrain.collectives.surviving import rank_of, ranks_of
from hvdtrain.config.step_range import StepRange
from hvdtrain.frameworks.tracing import profiling, waiter
from hvdtrain.interfaces import Position
from hvdtrain.runs.console import log
from hvdtrain.runs.timeline.clocks import ClockLine, ClockReading, read_clocks
from hvdtrain.runs.timeline.horovod_events import HorovodFile, Message, RankSteps, add_given
from hvdtrain.runs.timeline.summary import summary
from hvdtrain.runs.timeline.trace_file import trace
from hvdtrain.system import rank_info
from hvdtrain.system.files import write_atomically
from hvdtrain.system.phases import Span, StepSpans, now, phases
from hvdtrain.system.text import to_json
from hvdtrain.training.observer import Observer, Pause
from hvdtrain.training.ranks import LoggingInterval
from hvdtrain.training.run import RunContext

WARM_UP = 2
"""Steps before the first one that are made like recorded ones, as TensorFlow compiles a graph for them."""
MIN_NORMAL = 5
"""Steps that are not recorded, to tell how long they take."""


class Tracing(Observer):
    """The timeline of a run with --timeline. show: prints a line on rank 0, and writes it to each rank's log."""

    def __init__(self, run: RunContext, show: Callable[[str], None]) -> None:
        self._run, self._show = run, show
        self.steps: StepRange | None = StepRange.parse(run.runtime.timeline)
        """The steps that are still to be recorded; None if there are none (left)."""
        self._is_recording = False
        self._done = -1
        self._logged: deque[tuple[int, int]] = deque(maxlen=3)
        """When the latest logging steps ended, and the number of steps done."""
        self._normal_s: float | None = None

    def started(self, at: Position) -> None:
        """Steps up to `at` are done: those of earlier processes, or of other ranks."""
        steps, learner, done = self.steps, self._run.learner, at.step
        if not steps:  # its file was written before the ranks changed
            return
        phases.wait = waiter(self._run.config.framework, learner.device)
        if done >= steps.last:
            self._give_up(f"its steps were made before, as training begins at step {done} here")
        elif steps.first >= self._run.last_step:
            self._give_up(f"the run ends before these steps, after step {self._run.last_step - 1}")
        else:
            self._after(done)

    def step_ended(self, at: Position) -> None:
        """Record the step, and start or stop to record."""
        done = at.step
        if not self.steps or done == self._done:  # leaving an epoch before its end is not a step
            return
        self._done = done
        if phases.is_recording:
            phases.end_step(done - 1)
        self._after(done)

    def saved(self, at: Position, parameters: str) -> None:
        """Checkpoints, and evaluations before them, take long and belong to no step."""
        self._logged.clear()

    def joined(self, at: Position, interval: LoggingInterval) -> None:
        """The framework has computed all that it was asked for."""
        if self.steps and not phases.is_recording:
            self._logged.append((now(), at.step))

    def renewed(self, at: Position, pause: Pause) -> None:
        """What was recorded is of other ranks: all, also new ones, begin again with what is left of the steps."""
        phases.stop_recording()
        if self._is_recording:
            with self._folder, _warning("the profile of the framework"):
                if self._profiler:
                    self._profiler.close()
        self._is_recording, self._done = False, -1
        self._logged.clear()

    def ended(self) -> None:
        """Write what was recorded: no more steps follow."""
        if self._is_recording:
            self._finish()
        elif self.steps:
            self._give_up("the job ends before these steps")

    def _give_up(self, why: str) -> None:
        log.warning("--timeline %s: %s; there is no timeline", self.steps, why)
        self.steps = None
        phases.stop_recording()

    def _after(self, done: int) -> None:
        assert self.steps
        if self._is_recording:
            if done >= self.steps.last:
                self._finish()
        elif done >= self.steps.first:
            self._start()
        elif done >= self.steps.first - WARM_UP and not phases.is_recording:
            phases.record()  # which waits for all that has been queued
            self._measure_normal(done)

    def _measure_normal(self, done: int) -> None:
        if self._logged and done - self._logged[0][1] >= MIN_NORMAL:
            began, step = self._logged[0]
            self._normal_s = (now() - began) / 1e9 / (done - step)

    def _start(self) -> None:
        phases.stop_recording()
        self._is_recording = True
        group, self._folder = self._run.group, contextlib.ExitStack()
        self._horovod_file = Path(os.devnull)
        with _warning("Horovod's own timeline"):
            made = tempfile.TemporaryDirectory(prefix="hvdtrain-timeline-", ignore_cleanup_errors=True)
            self._horovod_file = Path(self._folder.enter_context(made)) / "horovod.json"
        self._has_horovod = isinstance(group, HorovodGroup) and group.start_timeline(self._horovod_file)
        self._profiler = self._start_profiler()
        self._before = read_clocks(group)
        phases.record()

    def _finish(self) -> None:
        """Stop, and write what all ranks have recorded."""
        assert self.steps
        steps, self._is_recording = phases.stop_recording(), False
        group = self._run.group
        after = read_clocks(group)
        if self._has_horovod and isinstance(group, HorovodGroup):
            group.stop_timeline()
        if self._profiler:
            with _warning("the profile of the framework"):
                self._profiler.close()
        gathered = group.gather([rank_info.host_name(), [_as_list(step) for step in steps]])
        with self._folder, _warning("the timeline"):
            if self._run.is_rank_0:
                self._write(gathered, after)
        self.steps = None

    def _write(self, gathered: list[Any], after: ClockReading) -> None:
        numbers = ranks_of(self._run.group)
        lines = [ClockLine(place, self._before, after) for place in range(len(gathered))]
        ranks = [
            RankSteps(rank, host, [_on_clock(step, line) for step in steps])
            for rank, (host, steps), line in zip(numbers, gathered, lines, strict=True)
        ]
        messages = self._messages(ranks[0])
        error_ns = max(line.error_ns for line in lines)
        add_given(messages, ranks, error_ns)
        error_s = error_ns / 1e9
        texts = summary(ranks, messages, self._normal_s, error_s)
        if any(line.error_ns for line in lines):
            most = max(abs(line.offset_ns - lines[0].offset_ns) for line in lines)
            texts.append(
                f"the ranks' clocks differ by up to {most / 1e9:,.3f} s, known to {error_s * 1e3:.2g} ms and corrected"
            )
        assert self.steps
        recorded = [step.step for step in ranks[0].steps]  # not all, of a job that begins or ends within them
        steps = StepRange(recorded[0], recorded[-1] + 1) if recorded else self.steps
        path = self._run.folder / f"timeline-{steps.first}-{steps.last}.json"
        for text in texts:
            self._show(f"timeline: {text}")
        clocks = [{"rank": rank, "offset_s": line.offset_ns / 1e9, "error_s": line.error_ns / 1e9}
                  for rank, line in zip(numbers, lines, strict=True)]  # fmt: skip
        with _warning(f"the timeline {path}"):
            write_atomically(path, to_json(trace(ranks, messages, {"summary": texts, "clocks": clocks})))
            self._show(f"timeline: {path}; open it at https://ui.perfetto.dev or chrome://tracing")

    def _messages(self, rank_0: RankSteps) -> list[Message]:
        """Horovod's messages in the recorded steps."""
        if not self._has_horovod or not rank_0.steps:
            return []
        try:
            horovod = HorovodFile(self._horovod_file)
        except OSError as error:
            log.warning("Horovod's own timeline cannot be read (%s): its messages are not in the timeline", error)
            return []
        start = horovod.start_of_clock(time.monotonic_ns() - time.time_ns(), self._before.local_sums)
        if start is None:
            log.warning("Horovod's own timeline is incomplete: its messages are not in the timeline")
            return []
        begin, end = rank_0.steps[0].begin, rank_0.steps[-1].end
        return [message for message in horovod.messages(start) if begin <= message.begin < end]

    def _start_profiler(self) -> contextlib.ExitStack | None:
        if not self._run.runtime.framework_profiler:
            return None
        with _warning("the profile of the framework"):
            path = self._run.folder / f"profiler-rank-{rank_of(self._run.group)}"
            profiler = contextlib.ExitStack()
            profiler.enter_context(profiling(self._run.config.framework, path))
            return profiler
        return None


@contextlib.contextmanager
def _warning(what: str) -> Iterator[None]:
    """Warn of an error, of the disk or of a framework's profiler: a timeline never ends a run."""
    try:
        yield
    except Exception as error:
        log.warning("%s cannot be written (%s): training continues without it", what, error)


def _as_list(step: StepSpans) -> list[Any]:
    """A step as JSON values, which every group can exchange."""
    return [step.step, [list(part) for part in step.parts], [list(message) for message in step.enqueued]]


def _on_clock(step: list[Any], line: ClockLine) -> StepSpans:
    """What `_as_list` made of a step, by rank 0's clock."""
    number, parts, enqueued = step
    spans = [Span(name, round(line.to_rank_0(begin)), round(line.to_rank_0(end))) for name, begin, end in parts]
    return StepSpans(number, spans, [(name, round(line.to_rank_0(at))) for name, at in enqueued])
