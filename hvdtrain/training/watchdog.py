"""Ends a job that makes no progress, and says which rank the others wait for.

A thread of each rank counts the time since the rank's last progress. After too long, the heartbeats of all ranks show
whether a rank still works while the others wait, and if not, which rank holds up the others: one whose heartbeat does
not change (its process is stopped, or its host is down), else one that is not in the framework's step while the others
wait there for it. None of this uses Horovod, so it works where a collective never returns. The thread uses no files, so
that it works where the run's folder does not respond. Only time in which the process runs counts: a job that was
suspended and resumed is not hung, nor is one in which somebody debugs a rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from hvdtrain.collectives.surviving import SurvivingGroup
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.strategy import Group
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import NotRunning
from hvdtrain.system.phases import RENEWING, phases
from hvdtrain.system.processes import TICK_S, RunningTime
from hvdtrain.system.resources import resident_bytes
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.training.heartbeats import Heartbeat, Heartbeats, explain, is_debugged, place_of, state_of, undebugged
from hvdtrain.training.observer import Observer, Pause
from hvdtrain.training.timing import StepTimer

MIN_LIMIT_S = 30.0
"""No hang is reported before this, unless --hang-timeout says so."""
LIMIT_FACTOR = 10.0
"""Without --hang-timeout, a hang is the lack of progress for this multiple of the longest step so far."""
WRITING_LIMIT_S = 600.0
"""How long a rank may use the run's folder between two steps, if its operations take less than the limit each."""
REPORT_WAIT_S = 1.5
"""How long ranks wait for the one that prints the report."""
FORCED_EXIT_S = 30.0
"""How long after the limit the process is ended if Python's threads no longer run."""
INTERPRETER_WATCH = Path(__file__).with_name("interpreter_watch.py")
STEP, EVALUATION = range(2)
"""The stages of a step, in their order."""


class Watchdog(Observer):
    """Watches the thread that creates it.

    timeout_s: seconds without progress that count as a hang; 0 for ten times the longest step so far, at least 30.
        While frameworks compile, before the first step, a job is hung only if a rank does not run at all.
    timer, rows: of this rank's steps, and how many rows they had; heartbeats show both.
    """

    def __init__(self, folder: Path, group: Group, timeout_s: float, timer: StepTimer, rows: Callable[[], int]) -> None:
        self._watching = undebugged(threading.Thread(target=self._watch, name="watchdog", daemon=True))
        self._folder, self._group, self._timeout_s = folder / "heartbeats", group, timeout_s
        self._rank, self._timer, self._rows = group.place, timer, rows
        self._beats = Heartbeats(self._folder, self._rank, lambda: group.ranks, self._heartbeat)
        self._thread = threading.get_ident()
        self._clock, self._ended = RunningTime(), threading.Event()
        self._reached = 0, STEP, 0
        self._last = self._longest_s = self._writing_s = 0.0
        self._state: tuple[int, ...] = ()
        self._exchanges = 0
        self._compiling, self._resumed, self._held_up = True, False, False
        self._report: tuple[str, int] | None = None
        """The report of a hang and the rank that prints it."""
        self._hung: list[int] = []
        """The ranks for which the others wait, where the job can go on without them."""

    def __enter__(self) -> Watchdog:
        faulthandler.register(signal.SIGQUIT, 2, chain=True)  # standard error, which a program may have replaced
        self._interpreter = self._watch_interpreter()
        self._python_runs()
        self._beats.start()
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watching.join()
        self._beats.stop(REPORT_WAIT_S)
        assert self._interpreter.stdin
        self._interpreter.stdin.close()
        self._interpreter.wait()
        faulthandler.unregister(signal.SIGQUIT)

    def step_done(self, at: Position) -> None:
        self.progress(at.step)

    def evaluating(self, at: Position, batches: int) -> None:
        self.progress(at.step, EVALUATION, batches)

    def renewed(self, at: Position, pause: Pause) -> None:
        """The ranks have changed: a step may be done again, and new ranks may be slower at first."""
        self._reached, self._last, self._resumed = (0, STEP, 0), self._clock.seconds, True
        self._compiling |= bool(pause.change.joined)  # new ranks may compile

    def progress(self, step: int, stage: int = STEP, part: int = 0) -> None:
        """Something is done: a training step, or a batch of the evaluation after it.

        part: number of the batch. All three only go forward: a second evaluation of the same step, in a loop that makes
        no steps, is not progress.
        """
        if (step, stage, part) <= self._reached:
            return
        if step > self._reached[0]:
            self._writing_s = 0.0
        now = self._clock.seconds
        if not (self._compiling or self._resumed or self._held_up):
            self._longest_s = max(self._longest_s, now - self._last)
        self._reached, self._last = (step, stage, part), now
        self._compiling = self._resumed = self._held_up = False

    @property
    def limit_s(self) -> float:
        """Seconds without progress that count as a hang now; ranks may be resumed MIN_LIMIT_S apart."""
        limit_s = self._timeout_s or max(MIN_LIMIT_S, LIMIT_FACTOR * self._longest_s)
        return max(limit_s, MIN_LIMIT_S) if self._compiling or self._resumed else limit_s

    def _watch(self) -> None:
        while not self._ended.wait(TICK_S):
            self._tick()
            idle_s, last = self._clock.seconds - self._last, self._last
            if idle_s > self.limit_s:
                works = self._examine(idle_s)
                if not works and self._last == last and not self._ended.is_set():
                    (self._end_hung_ranks if self._hung else self._end_job)(idle_s)
                self._last, self._held_up = max(self._last, self._clock.seconds), True

    def _tick(self) -> None:
        """Count the time, and notice whether the process was suspended or uses the run's folder."""
        if self._clock.tick():
            self._resumed = True
        frame = sys._current_frames().get(self._thread)
        if is_debugged(frame):  # so that other ranks see progress here
            self._last, self._held_up = self._clock.seconds, True
        is_writing = phases.current.uses_folder and not phases.waits
        state = state_of(frame) if is_writing else ()
        if state and state != self._state and self._writing_s < WRITING_LIMIT_S:
            self._writing_s += self._clock.seconds - self._last
            self._last = self._clock.seconds
        self._state = state
        exchanges = getattr(self._group, "exchanges", 0)
        if phases.current is RENEWING and exchanges != self._exchanges:  # handing over a large model takes a while
            self._last = self._clock.seconds
        self._exchanges = exchanges
        self._python_runs()

    def _python_runs(self) -> None:
        assert self._interpreter.stdin
        with contextlib.suppress(OSError):  # it was killed
            self._interpreter.stdin.write(f"{self.limit_s + FORCED_EXIT_S:g}\n".encode())

    def _examine(self, idle_s: float) -> bool:
        """Whether a rank still works, by the heartbeats; if not, the report is made."""
        self._report = None
        reading = threading.Thread(target=self._read_heartbeats, args=(idle_s,), daemon=True)
        reading.start()
        while reading.is_alive() and self._beats.blocked_s < self.limit_s and not self._ended.is_set():
            reading.join(TICK_S)
            self._tick()
        return not reading.is_alive() and self._report is None

    def _read_heartbeats(self, idle_s: float) -> None:
        """Write this rank's stacks, find out which rank the others wait for, and report it unless a rank works."""
        began = time.monotonic()
        with contextlib.suppress(OSError), open(self._folder / f"stacks-rank-{self._rank}.txt", "w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        seen = self._beats.observe(MIN_LIMIT_S if self._compiling else 0.0)
        if seen.works(self.limit_s / 2) or (self._compiling and not seen.silent):
            return
        time.sleep(max(began + REPORT_WAIT_S - time.monotonic(), 0))  # until the other ranks have written theirs
        text = f"{explain(seen, self._group.ranks, idle_s)}; the stacks of all ranks are in {self._folder}"
        first, self._hung = seen.living[0], []
        if self._group.survives:
            self._hung = seen.awaited(self._group.ranks)
            is_cut = cast(SurvivingGroup, self._group).is_cut
            if is_cut and not phases.waits:  # lost ones are silent, and new ones wait for this one
                first, self._hung = self._rank, [self._rank]
        self._report = text, first
        if self._rank == first and not self._hung:
            rank, host = seen.culprit
            RunEnd("hung", 1, Failure(text, rank=rank, host=host, stands_alone=True)).write(self._folder.parent)

    def _end_hung_ranks(self, idle_s: float) -> None:
        """Let the launcher end the ranks for which the others wait; those go on without them."""
        hung, self._hung = self._hung, []
        if self._report and self._rank == self._report[1]:
            for rank in hung:
                agent_pipe.send(NotRunning(rank, f"made no step for {idle_s:.0f} s"))

    def _end_job(self, idle_s: float) -> None:
        """Print the report on the first rank that still runs, and end all ranks."""
        unknown = f"no step for {idle_s:.0f} s, and the run's folder {self._folder.parent} does not answer"
        text, first = self._report or (unknown, self._rank)
        if self._rank != first:
            time.sleep(REPORT_WAIT_S)
        else:
            print(f"hvdtrain: rank {self._rank}: {text}", file=sys.stderr, flush=True)
        os._exit(1)

    def _heartbeat(self, number: int) -> Heartbeat:
        idle_s = self._clock.seconds - self._last
        return Heartbeat(
            *(self._rank, os.getpid(), rank_info.host_name(), self._reached[0], self._doing()),
            *(phases.waits and not phases.is_leaving, idle_s, number, time.time(), resident_bytes()),
            *(*self._timer.total, self._rows()),
        )

    def _doing(self) -> str:
        if phases.is_leaving:
            return "the end of its run, as its script has left the loop"
        return "step" if phases.waits else place_of(sys._current_frames().get(self._thread))

    def _watch_interpreter(self) -> subprocess.Popen[bytes]:
        """Start the process that ends this one where Python no longer runs."""
        command = [sys.executable, "-I", "-S", str(INTERPRETER_WATCH), str(os.getpid()), f"rank {self._rank}"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
        )
        assert process.stdin
        os.set_blocking(process.stdin.fileno(), False)
        return process
