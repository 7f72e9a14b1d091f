"""What a run is doing, or how it ended: from the record of its end, its heartbeats and its lock."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hvdtrain.runs.changes import Changes
from hvdtrain.runs.records import shown
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.search import TRACES
from hvdtrain.training.heartbeats import Observation, explain
from hvdtrain.views.rank_view import RankView

WAITING_S = 1.5
"""From so long without a step on all ranks, a run is shown as waiting."""
GOES_ON_S = 6.0
"""A run whose ranks write heartbeats for so long after its recorded end has gone on; others end a little later."""
STEPS = 3.0
"""A run with long steps, from this multiple of a step's time."""
LOST_S = 15.0
"""A run whose ranks are all silent for this long, and that recorded no end, was killed."""
STARTING_S = 10.0
"""A run without heartbeats is starting if rank 0 touched its lock in this time, which it does every 3 s."""
RESTARTING_S = 600.0
"""The ranks of the next attempt, or at least their lock, are there within this time, unless the launcher was killed."""
STATES = ("starting", "training", "waiting", "restarting", "finished", "stopped", "pruned", "failed", "hung")


class RunState(NamedTuple):
    """What a run is doing."""

    name: str
    """One of STATES."""
    reason: str = ""
    """Why it waits, or how it ended."""
    rank: int | None = None
    """The rank that failed, or that the others wait for."""

    @property
    def is_over(self) -> bool:
        """Whether it makes no further step by itself."""
        return self.name in ("finished", "stopped", "pruned", "failed", "hung")


def find_state(
    run: RecordedRun, ranks: list[RankView], size: int, step_s: float = 0.0, changes: Changes | None = None
) -> RunState:
    """The state of a run, from its end record, its heartbeats and its lock.

    size: its number of ranks; step_s: seconds that a step takes; changes: of its ranks.
    """
    ranks = [view for view in ranks if view.is_member]
    end, living = run.end, [view for view in ranks if not view.is_silent]
    if end and not (living and _newest(ranks) > end.time + GOES_ON_S):  # else it went on after that
        is_old = end.status == "restarting" and time.time() - end.time > RESTARTING_S
        status = "failed" if is_old and _lock_age(run.folder) > STARTING_S else end.status
        return RunState(status, shown(end.reason), end.rank)
    if living:
        members = [*changes.members.hosts] if changes and changes.members else range(size)
        state = _state_of_living(ranks, members, max(WAITING_S, STEPS * step_s))
        return _without_lost(state, changes, size) if changes and changes.lost else state
    if run.result and not end:
        return RunState("finished")  # its end could not be recorded
    if ranks:
        quiet_s = min(view.age_s for view in ranks)
        if quiet_s < LOST_S:
            return RunState("waiting", f"no heartbeat of any rank for {quiet_s:.0f} s", ranks[0].rank)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_newest(ranks)))
        return RunState("failed", f"no heartbeat of any rank since {since}: they were killed, or their hosts are down")
    if _lock_age(run.folder) < STARTING_S:
        return RunState("starting")
    if problem := _unreadable(run.folder):
        return RunState("waiting", f"its folder cannot be read ({problem})")
    return RunState("failed", "it ended before its first step")


def _unreadable(folder: Path) -> str:
    """Why the files of a run cannot be read; empty where they can."""
    try:
        hidden = [name for name in TRACES if name in os.listdir(folder) and not os.access(folder / name, os.R_OK)]
    except OSError as error:
        return str(error.strerror)
    return f"{hidden[0]}: {os.strerror(errno.EACCES)}" if hidden else ""


def _newest(ranks: list[RankView]) -> float:
    """When the newest heartbeat was written, in seconds since the epoch."""
    return max(view.beat.time for view in ranks)


def _without_lost(state: RunState, changes: Changes, size: int) -> RunState:
    """The state of a run without ranks that it lost: it names the last one, if nothing else is to be said."""
    lost = [change for rank, change in changes.lost.items() if rank < size]
    if state.name != "training" or state.reason or not lost or not changes.members:
        return state
    return RunState("training", f"{len(changes.members.hosts)} of {size} ranks: {lost[-1].text}", lost[-1].rank)


def _state_of_living(ranks: list[RankView], members: Sequence[int], waiting_s: float) -> RunState:
    """The state of a run of which at least one rank runs. waiting_s: how long it may be without a step."""
    idle_s = min(view.beat.idle_s for view in ranks if not view.is_silent)
    silent = [view for view in ranks if view.is_silent]
    if not silent and idle_s < waiting_s:
        slow = next((view for view in ranks if view.remark), None)
        return RunState("training", f"rank {slow.rank} is {slow.remark}" if slow else "", slow.rank if slow else None)
    seen = Observation({view.rank: view.beat for view in ranks}, frozenset(view.rank for view in silent))
    waited_s = max([idle_s, *(view.age_s for view in silent)])
    is_first = not silent and all(view.beat.step == 0 for view in ranks)  # frameworks compile before the first step
    name = "starting" if is_first else "waiting"
    return RunState(name, shown(explain(seen, members, waited_s)), seen.culprit[0])


def _lock_age(folder: Path) -> float:
    """Seconds since rank 0 touched the lock of a run's folder; very long where there is none."""
    try:
        touched = [entry.stat().st_mtime for entry in os.scandir(folder) if entry.name.startswith("lock-")]
    except OSError:
        return float("inf")
    return time.time() - max(touched, default=float("-inf"))
