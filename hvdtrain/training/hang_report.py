"""Which rank the others wait for, from the heartbeats of all ranks."""

from __future__ import annotations

from pathlib import Path
from types import FrameType
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
WAITING = ("frameworks", "collectives", "training/losses.py")
"""Folders and files of the package in which a rank computes its step or waits for other ranks."""
SILENT_S = 5.5
"""A rank whose heartbeat is older than this does not run: longer than the others took to write their stacks."""


class Heartbeat(NamedTuple):
    """The state of a rank; written as JSON."""

    rank: int
    pid: int
    host: str
    step: int
    doing: str
    """The `activity` of the training thread."""
    time: float
    """Seconds since the epoch, by this rank's clock."""


def activity(frame: FrameType | None) -> str:
    """What a thread does: `step` if it is in WAITING, else its place in the code; `ended` without a frame."""
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
    return [rank for rank, beat in beats.items() if now - beat.time < SILENT_S]


def explain(beats: dict[int, Heartbeat], size: int, seconds: float, now: float) -> str:
    """Which rank the others wait for, in one sentence; heartbeats by rank, `seconds` without a step."""
    hang = f"no step for {seconds:.0f} s"
    missing = [rank for rank in range(size) if rank not in beats]
    silent = [beats[rank] for rank in sorted(set(beats) - set(living(beats, now)))]
    if silent:
        who = ", ".join(f"rank {beat.rank} (process {beat.pid} on {beat.host}, step {beat.step})" for beat in silent)
        return f"{hang}: no heartbeat of {who}: it is stopped, or its host is down; the other ranks wait for it"
    if missing:
        ranks = ", ".join(map(str, missing))
        return f"{hang}, and no heartbeat file of rank {ranks}: the run's folder may not be on a shared disk"
    first, last = (choose(beat.step for beat in beats.values()) for choose in (min, max))
    busy = [beat for beat in beats.values() if beat.doing != "step" or beat.step == first < last]
    if busy and len(busy) < size:
        who = ", ".join(f"rank {b.rank} (process {b.pid} on {b.host}) is at {b.doing}, step {b.step}" for b in busy)
        return f"{hang}: {who}, and the other ranks wait for it"
    return f"{hang}: all ranks are at {', '.join(sorted({beat.doing for beat in beats.values()}))}, step {first}"
