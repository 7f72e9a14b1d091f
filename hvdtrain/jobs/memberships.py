"""Which ranks of a job that survives train together: from what happens to ranks to the next `Membership`.

Nothing here waits, starts or sends; `surviving.py` does.
"""

from __future__ import annotations

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
        """Whether a member has ended well: the others are to do so as well, and no rank joins any more."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that train, by position; none before the first membership."""
        return tuple(self._members) if self.number else ()

    @property
    def awaited(self) -> bool:
        """Whether some ranks are ready, and wait for the others before the first membership."""
        return bool(self._members) and not self.number

    @property
    def too_few(self) -> bool:
        """Whether the ranks that are left cannot go on."""
        return bool(self.number) and not self.finished and len(self._members) < max(self._min_ranks, 1)

    def ready(self, member: Member, after: int = 0) -> Membership | None:
        """A rank can train: the membership that has it, or None where others are awaited first.

        after: the newest membership that it knows. A member has lost its connections in that one, so that all members
        that still run connect again.
        """
        if self.number and after == self.number and member.rank in self._members:
            return self._next({})
        if member.rank in self._members or self.finished:
            return None
        self._members[member.rank] = member
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
        if not member or not self.number or self.too_few or not self._members:
            return None
        return self._next({rank: why})

    def only(self, rank: int) -> Membership | None:
        """The membership of one member, where the others end; None for a rank that is not a member."""
        self._members = {number: member for number, member in self._members.items() if number == rank}
        return self._next({}) if self._members else None

    def has_finished(self, rank: int) -> None:
        """A rank has ended well. Those that still run need no new membership for that."""
        self.finished = True
        self._members.pop(rank, None)

    def _next(self, lost: dict[int, str]) -> Membership:
        self.number += 1
        return Membership(self.number, tuple(self._members.values()), lost)
