"""The steps of `--timeline`: when each rank starts and stops to record, and what becomes of the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdtrain.config.forms import StepRange
from hvdtrain.frameworks.tracing import waiter
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs.console import log
from hvdtrain.runs.timeline import ClockLine, ClockReading, RankSteps, read_clocks, summary, trace
from hvdtrain.system import rank_info
from hvdtrain.system.files import write_atomically
from hvdtrain.system.phases import Span, StepSpans, phases
from hvdtrain.system.text import to_json
from hvdtrain.training.observer import Observer, Pause
from hvdtrain.training.run import RunContext


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
