"""Which ranks of a job train together, where they run, and when what has failed is started again.

Nothing here waits, starts or sends; `running_ranks.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import Job
from hvdtrain.system.agent_pipe import FINISHED, TRAINS, Reached
from hvdtrain.system.membership import Member, Membership
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
    host: str = ""
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
                used = {place.local_rank for place in self._on(host)}
                self._places[rank] = Place(rank, host, min({*range(len(used) + 1)} - used))
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


class MembershipLedger:
    """The memberships of one attempt. ranks: how many train in the first one. min_ranks: with fewer the job ends."""

    def __init__(self, ranks: int, min_ranks: int) -> None:
        self._ranks, self._min_ranks = ranks, min_ranks
        self.number = 0
        """Of the newest membership; 0 before the first one, for which all ranks have to be ready."""
        self._members: dict[int, Member] = {}
        """By rank, in the order of their positions; before the first membership, those that are ready."""
        self.finished = False
        """Whether a rank has completed its training, or has ended well: the others are to do so as well."""
        self._since: dict[int, int] = {}
        """The membership in which each member has come."""
        self._trains: dict[int, int] = {}
        """The ranks that have the state of training, or have completed it: the newest membership in which they had."""
        self._silent: set[int] = set()
        """Members that have not acknowledged the newest membership since it was last sent."""
        self._asks = -1
        """The member that waits for others, and has asked whether they run."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that train, by position; none before the first membership."""
        return tuple(self._members) if self.number else ()

    @property
    def begun(self) -> bool:
        """Whether a rank has the state of training, or has completed it."""
        return bool(self._trains)

    @property
    def awaited(self) -> bool:
        """Whether ranks are ready, or connect, before training has begun."""
        return bool(self._members) and not self.begun

    @property
    def too_few(self) -> bool:
        return bool(self.number) and not self.finished and len(self._members) < self._min_ranks

    def ready(self, member: Member, after: int = 0) -> Membership | None:
        """A rank can train: the membership that has it, or None where others are awaited first.

        after: the newest membership that it knows. A member has lost its connections in that one, so that all members
        that still run connect again.
        """
        if self.number and after == self.number and member.rank in self._members:
            return self._next({})
        if member.rank in self._members or (self.finished and self.begun):
            return None
        self._members[member.rank], self._since[member.rank] = member, self.number + 1
        if self.number:
            return self._next({})
        if len(self._members) < self._ranks:
            return None
        self._members = dict(sorted(self._members.items()))
        return self._next({})

    def lost(self, rank: int, why: str) -> Membership | None:
        """A rank has ended, or is to be ended: the membership without it.

        None for a rank that was not a member, or where too few are left.
        """
        member = self._members.pop(rank, None)
        self._trains.pop(rank, None)
        if not member or not self.number or self.too_few or not self._members:
            return None
        return self._next({rank: why})

    def awaited_by(self, rank: int) -> set[int]:
        """The ranks for which the others wait before the first membership, if this one does so for longest."""
        waits_longest = not self.number and rank == next(iter(self._members), None)
        return set(range(self._ranks)) - set(self._members) if waits_longest else set()

    def may_train(self, rank: int) -> bool:
        """Whether a rank has the state of training, or has completed it, or training has not begun."""
        return rank in self._trains or not self._trains

    def reached(self, rank: int, said: Reached) -> None:
        if said.number == self.number:
            self._silent.discard(rank)
        if said.stage in (TRAINS, FINISHED) and rank in self._members:
            self._trains[rank] = said.number
            self._asks = -1 if rank == self._asks else self._asks

    def silent(self, rank: int) -> set[int]:
        """A member waits long for others since it asked last: those that do not run. All are to acknowledge again."""
        if rank not in self._members or self._asks not in (-1, rank):  # the one that asked first asks again
            return set()
        silent, self._silent, self._asks = self._silent, set(self._members), rank
        return silent

    def has_finished(self, rank: int) -> None:
        """A rank has completed its training, or has ended well."""
        self.finished = True
        self._members.pop(rank, None)
        until = self._trains.get(rank, 0)
        for other in self._members:  # those that were there have come as far: their messages may be on the way
            if self._since[other] <= until:
                self._trains[other] = max(self._trains.get(other, 0), until)

    def left(self) -> Membership | None:
        """The membership of those that train, where one of them may wait for ranks that do not come any more."""
        self._members = {rank: member for rank, member in self._members.items() if self.may_train(rank)}
        waits = self.begun and any(self._trains[rank] < self.number for rank in self._members)
        return self._next({}) if waits else None

    def _next(self, lost: dict[int, str]) -> Membership:
        self.number += 1
        self._silent, self._asks = set(self._members), -1
        return Membership(self.number, tuple(self._members.values()), lost)
