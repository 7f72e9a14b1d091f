"""The heartbeats of all ranks, in files of the run's folder, and from them which rank the others wait for.

Each rank writes its own, and reads all after a hang.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from hvdtrain.runs.records import Count
from hvdtrain.system.files import Damaged, read_record, write_atomically
from hvdtrain.system.processes import TICK_S, RunningTime

HEARTBEAT_S = TICK_S
SILENT_S = 4.0
"""A rank whose heartbeat does not change for this long does not run."""
DEBUGGERS = ("bdb", "pdb", "debugpy", "pydevd", "_pydevd_bundle")
"""Modules that are in the stack of a thread that is debugged."""
SILENT_WRITES = 3
"""In a slow folder, a rank must be silent for as long as this number of heartbeats take."""


@dataclass(frozen=True)
class Heartbeat:
    """The state of a rank; written as JSON."""

    rank: Count
    pid: Count
    host: str
    step: Count
    doing: str
    """Where the training thread is, for people: a phase, or a place in the code."""
    waits: bool
    """Whether it computes its step or waits for other ranks: see `Phases.waits`."""
    idle_s: float
    """Seconds without progress, by this rank's own clock: the clocks of two hosts are never compared."""
    number: Count
    """Counts the heartbeats of this process: a rank whose number grows is running."""
    time: float = 0.0
    """Seconds since the epoch, by the clock of this host; for readers of the folder, like all that follows."""
    memory: float | None = None
    """Bytes of this process that are in memory."""
    compute_s: float = 0.0
    """Since training began in this process, see `StepSeconds`, as are the next two."""
    communicate_s: float | None = 0.0
    data_s: float = 0.0
    rows: float | None = None
    """Number of rows that this rank has trained on since then."""


class Observation(NamedTuple):
    """The heartbeats of all ranks, as one rank saw them."""

    beats: dict[int, Heartbeat]
    """The latest heartbeat of each rank that has one."""
    silent: frozenset[int]
    """Ranks whose heartbeat did not change while it was observed."""

    @property
    def living(self) -> list[int]:
        return sorted(set(self.beats) - self.silent)

    @property
    def busy(self) -> list[Heartbeat]:
        """The ranks for which the others wait in a step; empty if there is no such difference between ranks."""
        beats = self.beats.values()
        first, last = (choose(beat.step for beat in beats) for choose in (min, max))
        busy = [beat for beat in beats if not beat.waits or beat.step == first < last]
        return busy if len(busy) < len(beats) else []

    @property
    def culprit(self) -> tuple[int | None, str]:
        """The first rank for which the others wait, and its host; None if none is known."""
        culprits = self.awaited(())
        return (culprits[0], self.beats[culprits[0]].host) if culprits else (None, "")

    def awaited(self, ranks: Sequence[int]) -> list[int]:
        """Of these ranks those for which the others wait. One without a heartbeat never came: it counts before those
        that are a step behind, which wait for it as well.
        """
        missing = [rank for rank in ranks if rank not in self.beats]
        return sorted(self.silent) or missing or [beat.rank for beat in self.busy]

    def works(self, within_s: float) -> bool:
        """Whether a rank that runs made progress in the last `within_s` seconds."""
        return any(self.beats[rank].idle_s < within_s for rank in self.living)


class Heartbeats:
    """Writes this rank's heartbeat twice a second in a thread of its own, so that a slow folder delays nothing else.

    ranks: those that train now. current: makes the heartbeat with a given number.
    """

    def __init__(
        self, folder: Path, rank: int, ranks: Callable[[], Sequence[int]], current: Callable[[int], Heartbeat]
    ) -> None:
        self._folder, self._rank, self._ranks, self._current = folder, rank, ranks, current
        self._thread = undebugged(threading.Thread(target=self._write_until_ended, name="heartbeat", daemon=True))
        self._ended = threading.Event()
        self._number = 0
        self._began: float | None = None
        """When the heartbeat that is being written was begun; monotonic, in s."""
        self._write_s = 0.0
        """How long the latest heartbeat took."""

    def start(self) -> None:
        with contextlib.suppress(OSError):  # without the folder, a hang still ends the job
            self._folder.mkdir(exist_ok=True)
        self._write()
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """End the thread; a folder that does not respond is not waited for any longer than that."""
        self._ended.set()
        self._thread.join(within_s)

    @property
    def blocked_s(self) -> float:
        """For how long a heartbeat has been waiting for the folder."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def silent_s(self) -> float:
        """How long a heartbeat must stay the same for its rank not to run: longer in a slow folder."""
        return max(SILENT_S, SILENT_WRITES * max(self._write_s, self.blocked_s))

    def observe(self, least_s: float = 0.0) -> Observation:
        """Read all heartbeats until those of the other ranks have changed, or for `silent_s`, `least_s` or longer."""
        clock, first = RunningTime(), self._read()
        latest, same = first, set(first) - {self._rank}
        while same and clock.seconds < max(self.silent_s, least_s):
            time.sleep(HEARTBEAT_S)
            clock.tick()
            latest = {**latest, **self._read(same)}
            same = {rank for rank in same if latest[rank] == first[rank]}
        return Observation({**latest, self._rank: self._current(self._number)}, frozenset(same))

    def _write_until_ended(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            self._began = time.monotonic()
            self._write()
            self._write_s, self._began = self.blocked_s, None

    def _write(self) -> None:
        self._number += 1
        content = json.dumps(asdict(self._current(self._number)))
        with contextlib.suppress(OSError):  # the training thread reports a full disk
            write_atomically(self._path(self._rank), content)

    def _read(self, ranks: set[int] | None = None) -> dict[int, Heartbeat]:
        """The heartbeats of these ranks, by default of all, as far as their files have one."""
        beats = {}
        for rank in self._ranks() if ranks is None else ranks:
            with contextlib.suppress(Damaged):
                beats[rank] = read_record(self._path(rank), Heartbeat)
        return beats

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"


def place_of(frame: FrameType | None) -> str:
    if frame is None:
        return "its end"
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"


def is_debugged(frame: FrameType | None) -> bool:
    """Whether a debugger of Python runs or has stopped this thread: pdb and what derives from it, or debugpy."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def undebugged(thread: threading.Thread) -> threading.Thread:
    """A thread that debugpy leaves running when it stops the others of its process: it tells the other ranks so."""
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    return thread


def state_of(frame: FrameType | None) -> tuple[int, ...]:
    """Changes as long as a thread runs: its place in the code, and its local variables, which change in a loop."""
    state: list[int] = []
    while frame is not None:
        state += [id(frame.f_code), frame.f_lasti, *map(id, frame.f_locals.values())]
        frame = frame.f_back
    return tuple(state)


def explain(seen: Observation, ranks: Sequence[int], seconds: float) -> str:
    """Which rank the others wait for, in one sentence, after `seconds` without a step."""
    hang, beats = f"no step for {seconds:.0f} s", seen.beats
    if seen.silent:
        silent = [beats[rank] for rank in sorted(seen.silent)]
        who = ", ".join(f"rank {beat.rank} (process {beat.pid} on {beat.host}, step {beat.step})" for beat in silent)
        return f"{hang}: no heartbeat of {who}: it is stopped, or its host is down; the other ranks wait for it"
    missing = [rank for rank in ranks if rank not in beats]
    if missing:
        who = ", ".join(map(str, missing))
        return f"{hang}, and no heartbeat file of rank {who}: the run's folder may not be on a shared disk"
    if seen.busy:
        who = ", ".join(
            f"rank {b.rank} (process {b.pid} on {b.host}) is at {b.doing}, step {b.step}" for b in seen.busy
        )
        return f"{hang}: {who}, and the other ranks wait for it"
    places, step = sorted({beat.doing for beat in beats.values()}), min(beat.step for beat in beats.values())
    return f"{hang}: all ranks are at {', '.join(places)}, step {step}"
