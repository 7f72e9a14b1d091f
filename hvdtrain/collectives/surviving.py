"""A group whose members may be lost and replaced while training goes on (`hvdtrain launch --survive`).

Learners and the loop hold one `SurvivingGroup` for the whole job. It passes collectives on to a group of the ranks that
train together now: a ring, or Horovod's processes. When the launcher says that one of them is lost, or a collective
fails because of that, each collective raises RanksChanged, until `renew` has made the group of the next membership.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from hvdtrain.errors import HvdtrainError, TrainingError, UserError
from hvdtrain.interfaces.strategy import Group
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import FINISHED, HEARD, READY, TRAINS, WAITS, Reached
from hvdtrain.system.membership import VARIABLE, Membership
from hvdtrain.system.processes import TICK_S, RunningTime

ASK_AGAIN_S = 3.0
"""How long a rank whose connections broke waits for the next membership before it asks the launcher for one: a broken
connection is not always a lost rank."""
log = logging.getLogger("hvdtrain")


def is_requested() -> bool:
    """Whether the launcher has started this process in a job that survives lost ranks."""
    return VARIABLE in os.environ


class RanksChanged(Exception):
    """The ranks that train together are no longer those of this group: what they did together is to be done again."""


class RanksJoin(RanksChanged):
    """Other ranks join: all members leave this group after the same step."""


Connect = Callable[[Membership, int, Callable[[], bool]], Group]
"""Connects the members. Called with the membership, this process's position in it, and what tells whether a newer one
makes this one worthless; raises an error of any kind if the members cannot be connected."""


class RanksChange(NamedTuple):
    """What changed between two groups of a job."""

    membership: Membership
    lost: dict[int, str]
    joined: tuple[int, ...]
    """Ranks that were not there before, or are replaced."""


class MembershipReader:
    """What the launcher says through the agent's pipe; a thread reads it, and acknowledges it, also what it repeats.

    on_news: called in that thread with each new membership.
    """

    def __init__(self, pipe: socket.socket, on_news: Callable[[Membership], None]) -> None:
        self._pipe, self._on_news = pipe, on_news
        self._changed = threading.Condition()
        self._known: list[Membership] = []
        """All that have come, by their numbers."""
        threading.Thread(target=self._read, name="memberships", daemon=True).start()

    @property
    def newest(self) -> int:
        """The number of the newest membership; 0 before the first."""
        return self._known[-1].number if self._known else 0

    def _read(self) -> None:
        while line := self._receive():
            with contextlib.suppress(ValueError, msgspec.ValidationError):
                membership = msgspec.convert(json.loads(line), Membership, str_keys=True)
                agent_pipe.send(Reached(HEARD, membership.number))
                if membership.number <= self.newest:
                    continue
                with self._changed:
                    self._known.append(membership)
                    self._changed.notify_all()
                self._on_news(membership)

    def _receive(self) -> bytes:
        try:
            return self._pipe.recv(agent_pipe.PACKET_BYTES)
        except OSError:  # the agent has ended
            return b""

    def lost(self, after: int, until: int) -> dict[int, str]:
        """Why ranks were lost after one membership and up to another one, by rank."""
        between = (known.lost for known in tuple(self._known) if after < known.number <= until)
        return {rank: why for lost in between for rank, why in lost.items()}

    def wait(self, after: int, limit_s: float) -> Membership | None:
        """The newest membership, if its number is greater than `after` within so many seconds."""
        clock = RunningTime()
        with self._changed:
            while self.newest <= after:
                if clock.seconds >= limit_s:
                    return None
                self._changed.wait(min(TICK_S, limit_s))
                clock.tick()
            return self._known[-1]


class SurvivingGroup(Group):
    """The members of a job that survives lost ranks; before it has joined them, a group of this process alone."""

    survives = True

    def __init__(self, connect: Connect) -> None:
        launched = rank_info.detect()
        self._connect, self._place, self.local_rank = connect, launched.rank, launched.local_rank
        self._inner = Group()
        self._aborting = threading.Lock()
        self._tried: Membership | None = None
        """The newest membership that this process has tried to join."""
        self.connect_limit_s = math.inf if self.is_replacement else rank_info.start_timeout_s()
        """How long all members may take to connect: while a job starts, when no watchdog looks at ranks."""
        self._has_state = threading.Event()
        """Set when this process trains: from then on its watchdog notices ranks that do not run."""
        self._cut_below = 0
        """Memberships with a lower number have lost ranks."""
        self._communicated_s = 0.0
        """In the groups of former memberships."""
        self.exchanges = 0
        """How many collectives are complete: what shows that ranks that join get on."""
        if not os.environ[VARIABLE]:
            raise UserError("a process of a job with --survive makes one run", "start a job for each run")
        self._memberships = MembershipReader(agent_pipe.rank_end(), self._on_news)
        os.environ[VARIABLE] = ""

    @property
    def place(self) -> int:
        return self._place

    @property
    def ranks(self) -> tuple[int, ...]:
        """See `Group.ranks`; also while they connect."""
        return self._tried.ranks if self._tried else (self.place,)

    @property
    def is_replacement(self) -> bool:
        """Whether the others train already when this process begins."""
        return rank_info.REPLACES in os.environ

    @property
    def communicate_s(self) -> float | None:
        seconds = self._inner.communicate_s
        return None if seconds is None else self._communicated_s + seconds

    def sum(self, values: np.ndarray) -> np.ndarray:
        return self._call("sum", values)

    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        return self._call("exchange", name, vector, counts, lengths)

    def gather(self, value: Any) -> list[Any]:
        return self._call("gather", value)

    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        self._call("broadcast_bytes", values, root)

    def close(self) -> None:
        self.gather(None)  # so that each rank knows that rank 0 has written all
        with contextlib.suppress(Exception):  # others may have ended already
            self._inner.close()
        self._say(FINISHED)

    def _call(self, operation: str, *arguments: Any) -> Any:
        """A collective of the present group. Raises RanksChanged if its ranks are no longer those that train."""
        if self.is_cut:
            raise RanksChanged
        try:
            result = getattr(self._inner, operation)(*arguments)
        except Exception as error:  # of a lost rank: of a kind that depends on the library
            if not (self.is_cut or _is_by_lost_rank(error)):
                raise
            raise RanksChanged(str(error)) from error
        self.exchanges += 1
        return result

    @property
    def is_cut(self) -> bool:
        return bool(self.membership and self.membership.number < self._cut_below)

    def _on_news(self, membership: Membership) -> None:
        """The launcher says who trains from now on: free this process from waiting for ranks that are lost."""
        self.known_membership = membership.number
        if membership.lost:
            self._cut_below = membership.number
            self._abort()

    def _abort(self) -> None:
        with self._aborting:
            if self.is_cut:
                self._inner.abort()

    def join(self, patience_s: float | None = None) -> None:
        """Tell the launcher that this process is ready, and connect with the others.

        patience_s: until `trains`, the launcher finds out each time after so long whether the others run.
        """

        def ask() -> None:
            while not self._has_state.wait(patience_s):
                self._say(WAITS)

        threading.Thread(target=ask, name="joining", daemon=True).start()
        self._say(READY)
        self.renew(None)

    def _say(self, stage: str) -> bool:
        return agent_pipe.send(Reached(stage, self._tried.number if self._tried else 0))

    def trains(self) -> None:
        """This process has the state of training, after it has joined or renewed the group."""
        self._has_state.set()
        self._say(TRAINS)

    def change_since(self, before: Membership) -> RanksChange:
        """What has changed since a former membership of this process."""
        assert self.membership
        lost = self._memberships.lost(before.number, self.membership.number)
        joined = tuple(rank for rank in self.membership.ranks if rank not in before.ranks or rank in lost)
        return RanksChange(self.membership, lost, joined)

    def renew(self, change: RanksChanged | None) -> None:
        """Connect the members of the next membership. change: why; None for the first one."""
        self._leave(with_others=isinstance(change, RanksJoin))
        while True:
            membership = self._tried = self._next(change)
            if self.place not in membership.ranks:
                raise TrainingError("the launcher has taken this rank out of the job", "see the launcher's messages")
            try:
                inner = self._connected(membership)
            except RanksChanged as failed:
                log.info("membership %d cannot be connected: %s", membership.number, failed)
                change = change or failed
                continue
            self.membership, self.agreed_membership = membership, membership.number
            self._use(inner)
            self._abort()  # where ranks were lost while it connected
            return

    def _use(self, inner: Group) -> None:
        """Pass collectives on to this group."""
        self._inner, self.rank, self.size, self.controller = inner, inner.rank, inner.size, inner.controller

    def _connected(self, membership: Membership) -> Group:
        """Its members. Raises RanksChanged if one was lost meanwhile, TrainingError if they take too long."""
        clock = RunningTime()

        def gives_up() -> bool:
            clock.tick()
            return self._memberships.newest > membership.number or clock.seconds > self.connect_limit_s

        try:
            return self._connect(membership, membership.ranks.index(self.place), gives_up)
        except UserError:
            raise
        except Exception as error:  # of a kind that depends on the library
            if clock.seconds > self.connect_limit_s:
                reason = f"{len(membership.members)} ranks cannot be connected within {self.connect_limit_s:g} s"
                raise TrainingError(f"{reason} ({error})", "check that their hosts reach each other") from error
            raise RanksChanged(str(error)) from error

    def _next(self, change: RanksChanged | None) -> Membership:
        """The next membership; asks the launcher for one if it has not noticed that connections broke."""
        after = self._tried.number if self._tried else 0
        while not (membership := self._memberships.wait(after, ASK_AGAIN_S)):
            if change and not self._say(READY):
                raise TrainingError(f"other ranks are lost, and the launcher does not answer ({change})") from change
        return membership

    def _leave(self, with_others: bool) -> None:
        """Leave the present group. with_others: all its members leave it now."""
        inner = self._inner
        self._communicated_s += inner.communicate_s or 0.0
        with contextlib.suppress(Exception):  # of a kind that depends on the library
            if with_others:  # so that nothing is cut off that a slower rank still needs
                inner.close()
        with self._aborting:
            self.membership = None
            self._use(Group())
        inner.abort()
        with contextlib.suppress(Exception):
            inner.disconnect()


def _is_by_lost_rank(error: Exception) -> bool:
    """Whether an error of a collective may come from the end of another rank, instead of a mistake of this one."""
    if isinstance(error, HvdtrainError):
        return error.lost_peer
    return not isinstance(error, (TypeError, AttributeError, LookupError, MemoryError))


def leave_if_agreed(group: Group) -> None:
    """Raise RanksChanged if all ranks know of others that join; all do after the same step."""
    if group.membership and group.agreed_membership > group.membership.number:
        raise RanksJoin("other ranks join")
