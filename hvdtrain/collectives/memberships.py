"""The memberships that the launcher tells a rank of a job that survives lost ranks, through its agent's pipe."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable

import msgspec

from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import HEARD, Reached
from hvdtrain.system.membership import Membership
from hvdtrain.system.processes import TICK_S, RunningTime


class MembershipReader:
    """What the launcher says through the agent's pipe; a thread reads it, and acknowledges it, also what it repeats.

    on_loss: called in that thread with the number of each membership that has lost ranks.
    """

    def __init__(self, reading: int, on_loss: Callable[[int], None]) -> None:
        self._file, self._on_loss = os.fdopen(reading, "rb"), on_loss
        self._changed = threading.Condition()
        self._newest: Membership | None = None
        self._lost: list[tuple[int, dict[int, str]]] = []
        """Numbers of memberships, and the ranks that are lost since the one before."""
        threading.Thread(target=self._read, name="memberships", daemon=True).start()

    @property
    def newest(self) -> int:
        """The number of the newest membership; 0 before the first."""
        newest = self._newest
        return newest.number if newest else 0

    def _read(self) -> None:
        for line in self._file:
            with contextlib.suppress(ValueError, msgspec.ValidationError):
                membership = msgspec.convert(json.loads(line), Membership, str_keys=True)
                agent_pipe.send(Reached(HEARD, membership.number))
                if membership.number <= self.newest:
                    continue
                with self._changed:
                    self._newest = membership
                    self._lost.append((membership.number, membership.lost))
                    self._changed.notify_all()
                if membership.lost:
                    self._on_loss(membership.number)

    def take_lost(self, number: int) -> dict[int, str]:
        """Why ranks were lost since the last call and up to the membership with this number, by rank."""
        with self._changed:
            taken = [lost for of, lost in self._lost if of <= number]
            self._lost = self._lost[len(taken) :]
        return {rank: why for lost in taken for rank, why in lost.items()}

    def wait(self, after: int, limit_s: float) -> Membership | None:
        """The newest membership, if its number is greater than `after` within so many seconds."""
        clock = RunningTime()
        with self._changed:
            while not self._newest or self._newest.number <= after:
                if clock.seconds >= limit_s:
                    return None
                self._changed.wait(min(TICK_S, limit_s))
                clock.tick()
            return self._newest
