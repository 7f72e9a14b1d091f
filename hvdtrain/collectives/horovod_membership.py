"""Horovod's processes in one membership of a job that survives lost ranks: cut off at once, and connected again.

Horovod waits for a rank that is lost: in a collective until a connection fails, which that of a stopped process or of a
host that is down never does, and while it connects the ranks until all have left their addresses in the rendezvous
server. `MembershipGroup.abort` ends the first, as it cuts this process's connections; the launcher ends the second: it
closes the server of a membership when there is a newer one. Linux only, as /proc tells which connections are Horovod's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain.collectives.horovod import HorovodGroup
from hvdtrain.collectives.limits import LIBRARY_TIMEOUT_S
from hvdtrain.errors import PeerLost, TrainingError
from hvdtrain.system import rank_info
from hvdtrain.system.membership import Membership
from hvdtrain.system.network import gloo_variables
from hvdtrain.system.processes import RunningTime

POLL_S = 0.01
"""How often a rank that connects looks whether it has to give up."""
GIVE_UP_S = 20.0
"""How long Horovod may take to give up: 1.5 s where the rendezvous server is gone, as it asks three times."""
LOG_LEVEL = "HOROVOD_LOG_LEVEL"
TIMEVAL = struct.Struct("ll")
SYN_SENT, LISTEN = 2, 10
"""States of a TCP connection, as in Linux's tcp_states.h."""
Socket = tuple[int, str]
"""Descriptor, and what it refers to: the kernel uses the number again, but not the name."""


class MembershipGroup(HorovodGroup):
    """Horovod's processes of one membership, at `position` in it; the one before has to be disconnected.

    is_superseded: whether a newer membership makes this one worthless; called every POLL_S seconds while the ranks
    connect. Raises PeerLost if they cannot be connected, or it becomes superseded; TrainingError if this process has
    to end, as Horovod does not give up.
    """

    def __init__(
        self,
        hvd: ModuleType,
        to_tensor: Callable[[np.ndarray], Any],
        to_numpy: Callable[[Any], np.ndarray],
        membership: Membership,
        position: int,
        is_superseded: Callable[[], bool],
    ) -> None:
        os.environ.update(variables(membership, position))
        os.environ.setdefault(LOG_LEVEL, "fatal")  # how each lost rank was noticed: the launcher knows why it is lost
        self._others = frozenset(_sockets())
        _connect(hvd, membership, self._others, is_superseded)
        self._use(hvd, to_tensor, to_numpy)
        self.local_rank = membership.members[position].local_rank
        self._communicated_s = super().communicate_s or 0.0

    @property
    def communicate_s(self) -> float | None:
        """See `Group.communicate_s`; of this membership."""
        seconds = super().communicate_s
        return None if seconds is None else max(seconds - self._communicated_s, 0.0)

    def abort(self) -> None:
        _cut(self._others, connecting=False)

    def disconnect(self) -> None:
        self._hvd.shutdown()


def variables(membership: Membership, position: int) -> dict[str, str]:
    # Each rank by itself on its host: sums of all ranks need none of the connections that Horovod makes besides
    # among the ranks of a host and between hosts, which take as long as those of all.
    numbers = (position, len(membership.members), 0, 1, 0, 1)
    values = gloo_variables(numbers, f"position-{position}", membership.store)
    return {**values, rank_info.GLOO_TIMEOUT: str(LIBRARY_TIMEOUT_S)}  # also what its connections are recognized by


def _connect(
    hvd: ModuleType, membership: Membership, others: frozenset[Socket], is_superseded: Callable[[], bool]
) -> None:
    failures: list[Exception] = []

    def init() -> None:
        try:
            hvd.init()
        except Exception as error:  # raised in the thread that waits
            failures.append(error)

    # Not in this thread, so that it can give up, and act on signals.
    thread = threading.Thread(target=init, name="hvd.init", daemon=True)
    thread.start()
    superseded = False
    while thread.is_alive() and not (superseded := is_superseded()):
        thread.join(POLL_S)
    if superseded:
        _give_up(others, thread)
        if not failures:
            hvd.shutdown()
        raise PeerLost("a newer membership of the job came while Horovod connected the ranks")
    if failures:
        raise PeerLost(f"Horovod cannot connect the ranks ({failures[0]})") from failures[0]


def _give_up(others: frozenset[Socket], thread: threading.Thread) -> None:
    """Let the thread that connects the ranks fail, or be done."""
    clock = RunningTime()
    while thread.is_alive():
        _cut(others, connecting=True)  # again, as it may make new ones
        thread.join(POLL_S)
        clock.tick()
        if clock.seconds > GIVE_UP_S:
            reason = f"Horovod still connects the ranks of a former membership after {GIVE_UP_S:g} s"
            raise TrainingError(reason)


def _cut(others: frozenset[Socket], connecting: bool) -> None:
    """Shut down Horovod's connections.

    others: sockets that the process had before Horovod was initialized. connecting: also those that are not complete.
    """
    for descriptor, name in set(_sockets()) - others:
        # In a descriptor of its own: Horovod may close its own, whose number another file gets. OSError: it is closed.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if os.readlink(f"/proc/self/fd/{connection.fileno()}") == name and _is_gloo(connection, connecting):
                connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[Socket]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                yield int(name), target


def _is_gloo(connection: socket.socket, connecting: bool) -> bool:
    """Whether a socket is one of Gloo's, which sets its timeout for each connection that is complete."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    timeout = TIMEVAL.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.size))
    if timeout == (LIBRARY_TIMEOUT_S, 0):
        return True
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return connecting and state in (SYN_SENT, LISTEN)
