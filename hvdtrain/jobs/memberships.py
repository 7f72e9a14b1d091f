"""Which ranks of a job that survives train together: from what happens to ranks to the next `Membership`.

Nothing here waits, starts or sends; `surviving.py` does.
"""

from __future__ import annotations

from hvdtrain.system.agent_pipe import FINISHED, TRAINS, Reached
from hvdtrain.system.membership import Member, Membership


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
