"""Where the ranks of a job run, and when what has failed is started again. Nothing here waits or starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import Job
from hvdtrain.system.rank_info import host_name

QUICK_S = 60.0
"""A rank that was started again and is lost within this time is only started after a pause."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def pause_after(failures: int) -> float:
    """Seconds before a rank, or a job from its checkpoint, is started again that has failed so often in a row."""
    return min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)


class Place(NamedTuple):
    """Where a rank runs, or is to be started."""

    rank: int
    host: str
    local_rank: int


@dataclass
class _History:
    """What happened to one rank so far."""

    host: str = ""
    """Where it ran last."""
    started: float = 0.0
    starts: int = 0
    quick_losses: int = 0
    """In a row."""
    due: float = 0.0
    """When it may be started; times are in seconds of a monotonic clock."""


class Places:
    """The slots of the hosts, and which rank has which. hosts: they have at least `ranks` slots."""

    def __init__(self, hosts: Sequence[Host], ranks: int) -> None:
        self._hosts = {host.name: host.slots for host in hosts}
        self._ranks = ranks
        self._places: dict[int, Place] = {}
        self._history: dict[int, _History] = {}
        self._doubtful: set[str] = set()
        """Hosts that did not answer last time."""
        self._excluded: set[str] = set()

    @classmethod
    def of_job(cls, job: Job) -> Places:
        hosts = job.hosts or job.allocation or (Host(host_name(), job.ranks),)
        if job.nodes:  # srun takes as many, and spreads the ranks over them
            hosts = tuple(Host(host.name, -(-job.ranks // job.nodes)) for host in hosts[: job.nodes])
        return cls(hosts, job.ranks)

    def of(self, rank: int) -> Place | None:
        """Where a rank runs or starts; None where it does not."""
        return self._places.get(rank)

    def grow(self, ranks: int) -> None:
        """From now on up to that many ranks run."""
        self._ranks = ranks

    def add(self, hosts: Sequence[Host]) -> None:
        """These hosts have as many slots, or more."""
        for host in hosts:
            self._hosts[host.name] = max(host.slots, self._hosts.get(host.name, 0))

    def take(self, now: float) -> list[Place]:
        """The ranks that are to be started now, each with its slot. Lower ranks come first."""
        taken = []
        for rank in range(self._ranks):
            history = self._history.setdefault(rank, _History())
            host = self._choice(history) if rank not in self._places and history.due <= now else ""
            if host:
                history.host, history.started = host, now
                history.starts += 1
                self._places[rank] = Place(rank, host, self._free_local_rank(host))
                taken.append(self._places[rank])
        return taken

    def release(self, rank: int, now: float, answers: bool = True) -> float:
        """A rank is lost. answers: whether its host is known to be there. The pause in s before it is started again."""
        place = self._places.pop(rank)
        history = self._history[rank]
        if not answers:
            self._doubtful.add(place.host)
        quick = history.starts > 1 and now - history.started < QUICK_S
        history.quick_losses = history.quick_losses + 1 if quick else 0
        pause = pause_after(history.quick_losses) if quick else 0.0
        history.due = now + pause
        return pause

    def starts(self, rank: int) -> int:
        return self._history[rank].starts

    def answers(self, host: str) -> None:
        """A rank on that host has registered."""
        self._doubtful.discard(host)

    def exclude(self, host: str) -> None:
        self._excluded.add(host)

    def next_due(self, now: float) -> float | None:
        """Seconds until a rank can be started that waits for the end of its pause; None where none does."""
        waiting = (self._history.get(rank) for rank in range(self._ranks) if rank not in self._places)
        return min((history.due - now for history in waiting if history and history.due > now), default=None)

    def update(self, hosts: Sequence[Host]) -> list[Place]:
        """These hosts have slots now. The places that do not exist any more, highest local ranks first."""
        self._hosts = {host.name: host.slots for host in hosts}
        gone = list[Place]()
        for host in dict.fromkeys(place.host for place in self._places.values()):
            there = sorted(self._on(host), key=lambda place: place.local_rank)
            gone += reversed(there[self._hosts.get(host, 0) :])
        return gone

    def local_size(self, rank: int) -> int:
        """How many ranks have a place on the host of one that has."""
        return len(self._on(self._places[rank].host))

    def _on(self, host: str) -> Sequence[Place]:
        return [place for place in self._places.values() if place.host == host]

    def _choice(self, history: _History) -> str:
        """The host for a rank: where it was, if that answers; empty where no slot is free."""
        free = [
            host for host, slots in self._hosts.items() if host not in self._excluded and len(self._on(host)) < slots
        ]
        free.sort(key=lambda host: (host in self._doubtful, host != history.host))
        return free[0] if free else ""

    def _free_local_rank(self, host: str) -> int:
        used = {place.local_rank for place in self._on(host)}
        return next(number for number in range(len(used) + 1) if number not in used)
