"""Ends a job that makes no progress, and says which rank the others wait for.

Each rank has a thread that writes a heartbeat to the run's folder: its step, and what its training thread does. After
too long without a step, the heartbeats show which rank holds up the others: one without a fresh heartbeat (its process
is stopped, or its host is down), else one that is not in the framework's step while the others wait there for it.
None of this uses Horovod, so it works where a collective never returns. The time is checked in a separate thread,
so it works where the run's folder does not respond.
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
from typing import Any

from hvdtrain.system import rank_info
from hvdtrain.system.files import read_json, write_atomically
from hvdtrain.training.hang_report import Heartbeat, activity, explain, living

LEAST_LIMIT_S = 30.0
"""No hang is reported before this, unless --hang-timeout says so."""
LIMIT_FACTOR = 10.0
"""Without --hang-timeout, a hang is no progress for this multiple of the longest step so far."""
HEARTBEAT_S = 0.5
REPORT_WAIT_S = 1.5
"""How long ranks wait for each other's stacks."""
FOLDER_WAIT_S = 1.5
"""How long the run's folder may take to store the report."""
FORCED_EXIT_S = 30.0
"""How long after the limit the C library ends the process, if Python's threads no longer run."""


class Watchdog:
    """Watches the thread that creates it.

    timeout_s: seconds without progress that count as a hang; 0 for ten times the longest step so far, at least 30.
        Before the first step nothing counts as a hang: frameworks compile then.
    """

    def __init__(self, folder: Path, rank: int, size: int, timeout_s: float) -> None:
        self._watching = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._folder, self._rank, self._size, self._timeout_s = folder / "heartbeats", rank, size, timeout_s
        self._thread = threading.get_ident()
        self._step, self._last, self._longest_s, self._stepped = 0, time.monotonic(), 0.0, False
        self._ended = threading.Event()
        self._report: tuple[str, int] | None = None
        """The report and the rank that prints it; None as long as the run's folder does not respond."""

    def __enter__(self) -> Watchdog:
        with contextlib.suppress(OSError):  # without the folder, a hang still ends the job
            self._folder.mkdir(exist_ok=True)
        self._write_heartbeat()
        self._watching.start()
        self._beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watching.join()
        self._beating.join(REPORT_WAIT_S)
        faulthandler.cancel_dump_traceback_later()

    def progress(self, step: int) -> None:
        """A training step, or a batch of an evaluation, is done."""
        now = time.monotonic()
        if self._stepped:
            self._longest_s = max(self._longest_s, now - self._last)
        self._step, self._last, self._stepped = step, now, True

    @property
    def limit_s(self) -> float:
        """Seconds without progress that count as a hang now."""
        return self._timeout_s or max(LEAST_LIMIT_S, LIMIT_FACTOR * self._longest_s)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            self._write_heartbeat()

    def _watch(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            # Ends the process even where a framework holds the interpreter's lock forever.
            faulthandler.dump_traceback_later(self.limit_s + FORCED_EXIT_S, exit=True)
            if self._stepped and time.monotonic() - self._last > self.limit_s:
                self._end_job()

    def _write_heartbeat(self) -> None:
        doing = activity(sys._current_frames().get(self._thread))
        beat = Heartbeat(self._rank, os.getpid(), rank_info.host_name(), self._step, doing, time.time())
        with contextlib.suppress(OSError):  # the training thread reports a full disk
            write_atomically(self._path(self._rank), json.dumps(beat._asdict()))

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"

    def _end_job(self) -> None:
        """Print the report on the first rank that still runs, and end all ranks."""
        seconds = time.monotonic() - self._last
        reporting = threading.Thread(target=self._write_report, args=(seconds,), daemon=True)
        reporting.start()
        reporting.join(REPORT_WAIT_S + FOLDER_WAIT_S)
        report = self._report
        unknown = f"no step for {seconds:.0f} s, and the run's folder {self._folder.parent} does not answer"
        text, first = report or (unknown, 0)
        if self._rank != first:
            time.sleep(REPORT_WAIT_S)
        if self._rank == first or not report:
            print(f"hvdtrain: rank {self._rank}: {text}", file=sys.stderr, flush=True)
        os._exit(1)

    def _write_report(self, seconds: float) -> None:
        """Write this rank's stacks, then find out which rank the others wait for."""
        with contextlib.suppress(OSError), open(self._folder / f"stacks-rank-{self._rank}.txt", "w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        time.sleep(REPORT_WAIT_S)
        beats = self._read_heartbeats()
        text = explain(beats, self._size, seconds, time.time())
        text += f"; the stacks of all ranks are in {self._folder}"
        with contextlib.suppress(OSError):
            (self._folder / f"report-rank-{self._rank}.txt").write_text(text + "\n")
        self._report = text, min(living(beats, time.time()), default=self._rank)

    def _read_heartbeats(self) -> dict[int, Heartbeat]:
        beats = {}
        for rank in range(self._size):
            try:
                values: dict[str, Any] = read_json(self._path(rank))
                beats[rank] = Heartbeat(**values)
            except (OSError, ValueError, TypeError):
                continue
        return beats
