"""Which rank the others wait for, from the heartbeats of all ranks."""

from __future__ import annotations

from pathlib import Path
from types import FrameType
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
WAITING = ("frameworks", "collectives", "training/losses.py")
"""Folders and files of the package in which a rank computes its step or waits for other ranks."""
WRITING = ("runs", "system/files.py", "system/checkpoint_folder.py", "training/preemption.py")
"""Folders and files of the package in which a rank uses the run's folder."""


LEAVING = ("training/user_loop.py", "_leave")
"""File and function in which a rank is whose script has left its loop; it waits for the others to do so, too."""


class Heartbeat(NamedTuple):
    """The state of a rank; written as JSON."""

    rank: int
    pid: int
    host: str
    step: int
    doing: str
    """The `activity` of the training thread."""
    idle_s: float
    """Seconds without progress, by this rank's own clock: the clocks of two hosts are never compared."""
    number: int
    """Counts the heartbeats of this process: a rank whose number grows is running."""
    time: float = 0.0
    """Seconds since the epoch, by the clock of this host; for readers of the folder, like all that follows."""
    memory: int = 0
    """Bytes of this process that are in memory."""
    compute_s: float = 0.0
    """Since training began in this process, see `StepTime`, as the next two."""
    communicate_s: float | None = 0.0
    data_s: float = 0.0
    rows: int = 0
    """Number of rows that this rank has trained on since then."""


class Observation(NamedTuple):
    """The heartbeats of all ranks, as one rank saw them."""

    beats: dict[int, Heartbeat]
    """The latest heartbeat of each rank that has one."""
    silent: frozenset[int]
    """Ranks whose heartbeat did not change while it was observed."""

    @property
    def living(self) -> list[int]:
        """Ranks that run, in order."""
        return sorted(set(self.beats) - self.silent)

    @property
    def busy(self) -> list[Heartbeat]:
        """The ranks for which the others wait in a step; empty if there is no such difference between ranks."""
        beats = self.beats.values()
        first, last = (choose(beat.step for beat in beats) for choose in (min, max))
        busy = [beat for beat in beats if beat.doing != "step" or beat.step == first < last]
        return busy if len(busy) < len(beats) else []

    @property
    def culprit(self) -> tuple[int | None, str]:
        """The rank for which the others wait, and its host; None if none is known."""
        found = [self.beats[rank] for rank in sorted(self.silent)] or self.busy
        return (found[0].rank, found[0].host) if found else (None, "")

    def works(self, within_s: float) -> bool:
        """Whether a rank that runs made progress in the last `within_s` seconds."""
        return any(self.beats[rank].idle_s < within_s for rank in self.living)


def activity(frame: FrameType | None) -> str:
    """What a thread does: `step` if it is in WAITING, else its place in the code; `ended` without a frame."""
    if frame is None:
        return "ended"
    if _calls(frame, LEAVING):
        return "the end of its run, as its script has left the loop"
    if _is_in(frame, WAITING):
        return "step"
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"


def _calls(frame: FrameType | None, function: tuple[str, str]) -> bool:
    """Whether the thread is in this function of this package, or in one that it has called."""
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, code.co_name) == (str(PACKAGE / function[0]), function[1]):
            return True
        frame = frame.f_back
    return False


def writing_at(frame: FrameType | None) -> tuple[int, ...]:
    """The place in the code of a thread that uses the run's folder, which changes with each operation; else empty.

    In a loop over files each operation is at the same instruction, so the local variables belong to the place.
    """
    place: list[int] = []
    while frame is not None and _is_in(frame, WRITING):
        place += [id(frame.f_code), frame.f_lasti, *map(id, frame.f_locals.values())]
        frame = frame.f_back
    while place and frame is not None:
        place += [id(frame.f_code), frame.f_lasti]
        frame = frame.f_back
    return tuple(place)


def _is_in(frame: FrameType | None, places: tuple[str, ...]) -> bool:
    """Whether the innermost function of this package that the thread is in belongs to one of the places."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            return any(path.is_relative_to(PACKAGE / place) for place in places)
        frame = frame.f_back
    return False


def explain(seen: Observation, size: int, seconds: float) -> str:
    """Which rank the others wait for, in one sentence, after `seconds` without a step."""
    hang, beats = f"no step for {seconds:.0f} s", seen.beats
    if seen.silent:
        silent = [beats[rank] for rank in sorted(seen.silent)]
        who = ", ".join(f"rank {beat.rank} (process {beat.pid} on {beat.host}, step {beat.step})" for beat in silent)
        return f"{hang}: no heartbeat of {who}: it is stopped, or its host is down; the other ranks wait for it"
    missing = [rank for rank in range(size) if rank not in beats]
    if missing:
        ranks = ", ".join(map(str, missing))
        return f"{hang}, and no heartbeat file of rank {ranks}: the run's folder may not be on a shared disk"
    if seen.busy:
        who = ", ".join(
            f"rank {b.rank} (process {b.pid} on {b.host}) is at {b.doing}, step {b.step}" for b in seen.busy
        )
        return f"{hang}: {who}, and the other ranks wait for it"
    places, step = sorted({beat.doing for beat in beats.values()}), min(beat.step for beat in beats.values())
    return f"{hang}: all ranks are at {', '.join(places)}, step {step}"
