"""Which ranks train together now, in a job that survives the loss of some (`hvdtrain launch --survive`).

The launcher decides it, and each rank's agent hands it to its program through a pipe. A rank is a place in the job: the
process that replaces rank 2 is rank 2 again. Its position among the members is another number, which changes: the
rank at position 0 writes the run's folder. Members keep their order, and new ones come last, so that the first one
always has the state of training.
"""

from __future__ import annotations

from typing import NamedTuple

VARIABLE = "HVDTRAIN_MEMBERSHIP"
"""Environment variable of a rank whose job survives: its agent tells it memberships; empty once it has made a run."""


class Member(NamedTuple):
    """A rank that trains."""

    rank: int
    host: str
    local_rank: int
    address: str
    """Where it can listen for the other ranks."""
    port: int


class Membership(NamedTuple):
    """The ranks that train together."""

    number: int
    """Grows with each change, from 1."""
    members: tuple[Member, ...]
    """By position."""
    lost: dict[int, str]
    """Why ranks are lost since the membership before, by rank: the others leave what they do together at once. Empty
    where ranks only join: then they finish their step first."""
    store: tuple[str, int] = ("", 0)
    """Address and port of the rendezvous server of Horovod's Gloo, which only this membership uses."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks by position."""
        return tuple(member.rank for member in self.members)
