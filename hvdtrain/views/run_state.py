"""The ranks of a run, from their heartbeats; and what the run is doing, or how it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.runs.changes import Changes, RankEvent
from hvdtrain.runs.records import RunResult, shown
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.search import TRACES
from hvdtrain.runs.step_times import WINDOW_S, StepSeconds, slow_ranks
from hvdtrain.system.files import Damaged, changed_at_ns, read_record
from hvdtrain.training.heartbeats import Heartbeat, Observation, explain

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
STATES = {
    "starting": "cyan", "training": "green", "waiting": "yellow", "restarting": "yellow", "finished": "",
    "stopped": "yellow", "pruned": "yellow", "failed": "red", "hung": "red",
}  # fmt: skip
"""What a run does, each with its color."""


class RunState(NamedTuple):
    name: str
    reason: str = ""
    """Why it waits, or how it ended."""
    rank: int | None = None
    """The rank that failed, or that the others wait for."""

    @property
    def is_over(self) -> bool:
        """Whether it makes no further step by itself."""
        return self.name in ("finished", "stopped", "pruned", "failed", "hung")


def find_state(run: RecordedRun, ranks: list[RankView], size: int, step_s: float, changes: Changes) -> RunState:
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
        members = [*changes.members.hosts] if changes.members else range(size)
        state = _state_of_living(ranks, members, max(WAITING_S, STEPS * step_s))
        return _without_lost(state, changes, size)
    if not end and run.result != RunResult():
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


FILE = re.compile(r"rank-(\d{1,6})\.json")
SILENT_S = 1.4
"""A rank writes a heartbeat every half second: after this long without one it is shown as silent."""
REPLACED_S = 2.0
"""A heartbeat that is so much newer than the record of its rank's loss is that of a replacement."""
LATE_FACTOR = 2.0
"""Where a shared folder shows heartbeats late, a rank is silent after this multiple of the longest delay seen."""


def read_beats(folder: Path) -> dict[int, Heartbeat]:
    """The newest heartbeat of each rank of a run, by rank, with the time of the file system's clock."""
    try:
        names = os.listdir(folder / "heartbeats")
    except OSError:
        return {}
    beats = {}
    for match in filter(None, map(FILE.fullmatch, names)):
        path, rank = folder / "heartbeats" / match[0], int(match[1])
        with contextlib.suppress(Damaged):
            beat = read_record(path, Heartbeat)
            host, doing, changed = shown(beat.host), shown(beat.doing), changed_at_ns(path) / 1e9
            beats[rank] = replace(beat, rank=rank, host=host, doing=doing, time=changed)
    return dict(sorted(beats.items()))


@dataclass(frozen=True)
class RankView:
    beat: Heartbeat
    age_s: float
    """Seconds since its heartbeat last changed."""
    images_per_s: float | None = None
    """Rows that this rank trains per second."""
    shares: StepSeconds | None = None
    """Shares of the time of steps, of a rank that makes steps."""
    remark: str = ""
    """What is wrong with it: `no heartbeat for 3 s`, `slow`; empty for a rank like the others."""
    silent_after_s: float = SILENT_S
    """After how long without a heartbeat it does not run."""
    is_member: bool = True
    """Whether it trains with the others: not if it was lost, or is started in the place of one that was."""

    @property
    def rank(self) -> int:
        return self.beat.rank

    @property
    def is_silent(self) -> bool:
        """Whether its process does not run: it was killed, it is stopped, or its host is down."""
        return self.age_s > self.silent_after_s

    def to_json(self) -> dict[str, Any]:
        compute, communicate, data = self.shares or (None, None, None)
        beat = self.beat
        return {
            "rank": beat.rank, "host": beat.host, "pid": beat.pid, "step": beat.step, "doing": beat.doing,
            "age_s": round(self.age_s, 1), "images_per_s": self.images_per_s, "memory": beat.memory,
            "compute": compute, "communicate": communicate, "data": data, "remark": self.remark,
            "is_silent": self.is_silent, "is_member": self.is_member,
        }  # fmt: skip


class RankWatch:
    """Follows the heartbeats of one run. Ages are those of what this process sees, as clocks of hosts differ."""

    def __init__(self) -> None:
        self._history: dict[int, list[tuple[float, Heartbeat]]] = {}
        """The heartbeats of each rank in the last WINDOW_S, and when they were seen, by the monotonic clock."""
        self._looked, self._delay_s = 0.0, 0.0
        """When `look` was called last; and how late, at most, the folder has shown heartbeats."""

    def look(self, beats: dict[int, Heartbeat]) -> list[RankView]:
        """The ranks now, without remarks. beats: as `read_beats` has just read them."""
        now = time.monotonic()
        for rank, beat in beats.items():
            self._add(rank, beat, now)
        for rank in set(self._history) - set(beats):  # of a job that has fewer ranks now
            del self._history[rank]
        self._looked = now
        return [self._view(rank, now) for rank in sorted(self._history)]

    def _add(self, rank: int, beat: Heartbeat, now: float) -> None:
        seen = self._history.setdefault(rank, [])
        if seen and (seen[-1][1].pid, seen[-1][1].host) != (beat.pid, beat.host):  # a restarted rank
            seen.clear()
        if not seen:  # its age is unknown yet, except by the clocks
            age = max(time.time() - beat.time, 0.0) if beat.time else 0.0
            seen.append((now - age, beat))
        elif seen[-1][1].number != beat.number:
            # Several were written since the last one that was seen: the folder shows them late, as NFS may do.
            if beat.number - seen[-1][1].number > 2 and now - self._looked < SILENT_S:  # else this process did not look
                self._delay_s = max(self._delay_s, now - seen[-1][0])
            seen.append((now, beat))
        while len(seen) > 2 and seen[1][0] < now - WINDOW_S:
            del seen[0]

    def _view(self, rank: int, now: float) -> RankView:
        (began, first), (ended, last) = self._history[rank][0], self._history[rank][-1]
        # The rank's own clock, as this process sees heartbeats late.
        seconds = last.time - first.time if last.time > first.time else ended - began
        speed = None
        if first is not last and first.rows is not None and last.rows is not None and seconds > 0:
            speed = max(last.rows - first.rows, 0.0) / seconds
        silent_after_s = max(SILENT_S, LATE_FACTOR * self._delay_s)
        spent = _steps(last).minus(_steps(first)) if first is not last else _steps(last)
        return RankView(last, max(now - ended, 0.0), speed, spent.shares, "", silent_after_s)


def _steps(beat: Heartbeat) -> StepSeconds:
    """The time of all steps in the process of a rank."""
    return StepSeconds(beat.compute_s, beat.communicate_s, beat.data_s)


def with_remarks(views: Sequence[RankView], changes: Changes, size: int) -> list[RankView]:
    """The ranks with what is wrong with each: those that train together, and those that were lost or join next.

    size: the number of ranks at the start; 0 if it is not known. Ranks beyond them are of an earlier, larger attempt.
    """
    members = (
        changes.members.hosts if changes.members else {view.rank for view in views if view.rank < size or not size}
    )
    lost = changes.lost if changes.members else {}
    others = [_other(view, lost.get(view.rank)) for view in views if view.rank not in members]
    together = [view for view in views if view.rank in members]
    remarks = _slow(together)
    for number, view in enumerate(together):
        silent = f"no heartbeat for {view.age_s:.0f} s" if view.is_silent else ""
        together[number] = replace(view, remark=silent or remarks.get(number, ""))
    return sorted([*together, *filter(None, others)], key=lambda view: view.rank)


def _slow(views: Sequence[RankView]) -> dict[int, str]:
    """The remark on each slow rank, by its place."""
    known = [view.shares.of(WINDOW_S) for view in views if view.shares]
    # With --shards, ranks may have different numbers of rows; and a rank that joined later has trained fewer so far.
    rates = [view.images_per_s or 0.0 for view in views]
    work = rates if all(rates) else [view.beat.rows or 0 for view in views]
    slow = slow_ranks([known], work=work) if len(known) == len(views) else []
    return {one.rank: one.remark for one in slow}


def _other(view: RankView, lost: RankEvent | None) -> RankView | None:
    """A rank that does not train with the others; None for one of an earlier job."""
    view = replace(view, images_per_s=None, shares=None, is_member=False)
    if view.is_silent or (lost and view.beat.time < lost.time + REPLACED_S):
        return replace(view, remark=f"lost at step {lost.step}") if lost else None
    return replace(view, remark="starts, and joins at the end of a step")
