"""Ends a job that no longer makes steps, and says which rank is to blame.

Each rank has a thread that writes a heartbeat into the run's folder: its step, and what its training thread does. When
no step was made for too long, the ranks' heartbeats tell who holds the others up: one whose own thread is silent (the
process is stopped, or its host is gone), else one that is not in the framework's step while the others wait there for
it. That does not pass through Horovod, so it works where a collective never returns. The clock is looked at in a thread
of its own, so it works where that folder no longer answers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from hvdtrain.system import rank_info

PACKAGE = Path(__file__).parents[1]
# Modules in which a rank computes its step or waits for the others.
WAITING = ("frameworks", "collectives", "runs/metrics.py")
LEAST_S = 30.0
"""No hang is told before this, unless --hang-timeout says so."""
TIMES_LONGEST = 10.0
"""A hang is no progress for this many times the longest step seen."""
HEARTBEAT_S = 0.5
SILENT_S = 4.0
"""A rank without heartbeat for this long is taken for stopped."""
REPORT_WAIT_S = 1.5
"""How long ranks wait for each other's stacks."""
FOLDER_WAIT_S = 1.5
"""How long the run's folder may take for the report."""


class Heartbeat(NamedTuple):
    """What a rank says of itself; written as JSON."""

    rank: int
    pid: int
    host: str
    step: int
    doing: str
    """What `where` tells of the training thread."""
    time: float
    """Seconds since the epoch, by this rank's clock."""


class Watchdog:
    """Watches this rank's training thread, the one that makes it.

    timeout_s: seconds without progress that are a hang; 0 for ten times the longest step seen, at least 30. Before the
    first step nothing is a hang: frameworks compile there.
    """

    def __init__(self, folder: Path, rank: int, size: int, timeout_s: float) -> None:
        self._watch = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._folder, self._rank, self._size, self._timeout_s = folder / "heartbeats", rank, size, timeout_s
        self._thread = threading.get_ident()
        self._step, self._last, self._longest, self._stepped = 0, time.monotonic(), 0.0, False
        self._ended = threading.Event()
        self._told: tuple[str, int] | None = None
        """What the report says, and the rank that speaks; None while the run's folder does not answer."""

    def __enter__(self) -> Watchdog:
        with contextlib.suppress(OSError):  # without it, a hang still ends the job
            self._folder.mkdir(exist_ok=True)
        self._write()
        self._watch.start()
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()
        self._beats.join(REPORT_WAIT_S)
        faulthandler.cancel_dump_traceback_later()

    def progress(self, step: int) -> None:
        """A step is done, or a part of an evaluation."""
        now = time.monotonic()
        if self._stepped:
            self._longest = max(self._longest, now - self._last)
        self._step, self._last, self._stepped = step, now, True

    @property
    def limit_s(self) -> float:
        """Seconds without progress that are a hang now."""
        return self._timeout_s or max(LEAST_S, TIMES_LONGEST * self._longest)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            self._write()

    def _run(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            # Where a framework never lets this thread run again, the C library's ends the process.
            faulthandler.dump_traceback_later(self.limit_s + 30, exit=True)
            if self._stepped and time.monotonic() - self._last > self.limit_s:
                self._end()

    def _write(self) -> None:
        text = json.dumps(self._heartbeat()._asdict())
        draft = self._path(self._rank).with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk is not this thread's to tell
            draft.write_text(text)
            draft.replace(self._path(self._rank))

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"

    def _heartbeat(self) -> Heartbeat:
        doing = where(sys._current_frames().get(self._thread))
        return Heartbeat(self._rank, os.getpid(), rank_info.host_name(), self._step, doing, time.time())

    def _end(self) -> None:
        """The first rank that still lives speaks; all end."""
        seconds = time.monotonic() - self._last
        report = threading.Thread(target=self._report, args=(seconds,), daemon=True)
        report.start()
        report.join(REPORT_WAIT_S + FOLDER_WAIT_S)
        unknown = f"no step for {seconds:.0f} s, and the run's folder {self._folder.parent} does not answer"
        told = self._told
        text, first = told or (unknown, 0)
        if self._rank != first:
            time.sleep(REPORT_WAIT_S)
        if self._rank == first or not told:
            print(f"hvdtrain: rank {self._rank}: {text}", file=sys.stderr, flush=True)
        os._exit(1)

    def _report(self, seconds: float) -> None:
        """Write this rank's stacks, and find out who is to blame and who speaks."""
        with contextlib.suppress(OSError), open(self._folder / f"stacks-rank-{self._rank}.txt", "w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        time.sleep(REPORT_WAIT_S)
        beats = self._read()
        text = explain(beats, self._size, seconds, time.time())
        text += f"; stacks of the ranks are in {self._folder}"
        with contextlib.suppress(OSError):
            (self._folder / f"report-rank-{self._rank}.txt").write_text(text + "\n")
        self._told = text, min(living(beats, time.time()), default=self._rank)

    def _read(self) -> dict[int, Heartbeat]:
        beats = {}
        for rank in range(self._size):
            try:
                values: dict[str, Any] = json.loads(self._path(rank).read_text())
                beats[rank] = Heartbeat(**values)
            except (OSError, ValueError, TypeError):
                continue
        return beats


def where(frame: FrameType | None) -> str:
    """`step` where the training thread is in a call of ours that waits for other ranks, else its place in the code."""
    innermost = frame
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            if any(path.is_relative_to(PACKAGE / place) for place in WAITING):
                return "step"
            break
        frame = frame.f_back
    if innermost is None:
        return "ended"
    code = innermost.f_code
    return f"{Path(code.co_filename).name}:{innermost.f_lineno} in {code.co_name}"


def living(beats: dict[int, Heartbeat], now: float) -> list[int]:
    """Ranks whose heartbeat is fresh; `now` in seconds since the epoch."""
    return [rank for rank, beat in beats.items() if now - beat.time < SILENT_S + REPORT_WAIT_S]


def explain(beats: dict[int, Heartbeat], size: int, seconds: float, now: float) -> str:
    """Who holds the others up, in a sentence."""
    told = f"no step for {seconds:.0f} s"
    missing = [rank for rank in range(size) if rank not in beats]
    silent = sorted(set(beats) - set(living(beats, now)))
    if silent:
        who = ", ".join(f"rank {r} (process {beats[r].pid} on {beats[r].host}, step {beats[r].step})" for r in silent)
        return f"{told}: no heartbeat of {who}: it is stopped, or its host is gone; the other ranks wait for it"
    if missing:
        return f"{told}, and no word from rank {', '.join(map(str, missing))}: is the run's folder on a shared disk?"
    first = min(beat.step for beat in beats.values())
    busy = [beat for beat in beats.values() if beat.doing != "step" or beat.step == first < _last(beats)]
    if busy and len(busy) < size:
        who = ", ".join(f"rank {b.rank} (process {b.pid} on {b.host}) is at {b.doing}, step {b.step}" for b in busy)
        return f"{told}: {who}, and the other ranks wait for it"
    return f"{told}: all ranks are at {', '.join(sorted({beat.doing for beat in beats.values()}))}, step {first}"


def _last(beats: dict[int, Heartbeat]) -> int:
    return max(beat.step for beat in beats.values())
