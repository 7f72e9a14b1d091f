"""What a rank and its agent say to each other: which process trains, its run, why it fails, and which ranks train.

So the launcher knows the run's folder and compares the ranks' failures. It reports the failure that came first, once.
In a job that survives lost ranks (`membership.py`), a rank also says when it can join, and which rank is to be ended.
Without an agent, which gives the rank its end of the pipe, the rank prints its failure itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from hvdtrain.system.processes import ProcessIdentity
from hvdtrain.system.run_end import Failure

VARIABLE = "HVDTRAIN_AGENT_PIPE"
"""Environment variable of a rank: the file descriptor and inode of its end, as in `7:4711`."""
SUPERVISOR = "HVDTRAIN_SUPERVISOR"
"""Environment variable of an agent: the supervisor's addresses and port, as in 10.0.0.1,192.168.0.1:4711."""
MAX_TEXT = 8000
"""Characters of a text. A packet is sent at once or not at all, so it has to fit into the pipe."""
PACKET_BYTES, MAX_PACKETS = 1 << 20, 1000
"""The largest packet, and more than the kernel keeps: a program may write faster than its agent reads."""


@dataclass(frozen=True)
class OpenedRun:
    """The run that rank 0 trains."""

    folder: str
    """Its absolute path."""
    resumable: bool
    """Whether the same command line, started again with the same variables, resumes it."""
    checkpoint: str = ""
    """The path of the checkpoint that it resumes from; empty where it starts from the beginning."""


READY, HEARD, WAITS, TRAINS, FINISHED = STAGES = "ready", "heard", "waits", "trains", "finished"
"""What a rank says of a membership: it can become a member, as all is done that takes long before its first step, or it
is one that has lost its connections, of which the launcher may not know; it runs, and knows the membership; it has
waited long for other members before it trains; it has the state of training; its training is complete."""


@dataclass(frozen=True)
class Reached:
    """How far a rank is with its membership."""

    stage: str
    """One of STAGES."""
    number: int
    """Of the newest membership that this rank knows; 0 before the first."""


@dataclass(frozen=True)
class NotRunning:
    """A member does not run: it is stopped, or its host is down. It is to be ended, and counts as lost."""

    rank: int
    reason: str


class Excluded(NotRunning):
    """A member computes wrong bits. It is to be ended, and its host is not to be used again."""


Report = Failure | ProcessIdentity | OpenedRun | Reached | NotRunning
KINDS = {kind.__name__: kind for kind in (Failure, ProcessIdentity, OpenedRun, Reached, NotRunning, Excluded)}
"""A `ProcessIdentity` is that of the process that trains, or is about to: requests to stop go to it."""


def send(said: Report) -> bool:
    """Whether somebody took it: then it is the launcher that prints a failure."""
    try:
        values = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in asdict(said).items()}
        pipe = socket.socket(fileno=_rank_end())  # no new file descriptor: that there is none may be what it says
        try:
            pipe.send(json.dumps({type(said).__name__: values}).encode(), socket.MSG_DONTWAIT)
        finally:
            pipe.detach()
        return True
    except (ValueError, OSError):
        return False


def rank_end() -> socket.socket:
    """The end of the pipe that this process has as a rank, by another descriptor. Raises OSError if it has none."""
    return socket.socket(fileno=os.dup(_rank_end()))


def _rank_end() -> int:
    number, _, inode = os.environ.get(VARIABLE, "").partition(":")
    status = os.fstat(int(number) if number.isdecimal() else -1)
    if not stat.S_ISSOCK(status.st_mode) or str(status.st_ino) != inode:  # of a process that has no such pipe
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return int(number)


class AgentPipe:
    """The agent's end, which never waits, and the rank's, which is closed once the rank has started."""

    def __init__(self) -> None:
        self._socket, self.rank_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._unsent = deque[bytes]()
        self.variable = f"{self.rank_end.fileno()}:{os.fstat(self.rank_end.fileno()).st_ino}"
        """The value of VARIABLE for the rank."""
        self.ended = False
        """Whether all processes that had the rank's end have closed it."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """After those before it, once the rank has taken enough of them; a rank that has ended gets none."""
        self._unsent.append(message)
        self.send_rest()

    def send_rest(self) -> None:
        """Send what waits for the rank as far as that is possible now."""
        while self._unsent:
            try:
                self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:  # the rank has ended
                pass
            self._unsent.popleft()

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived, as JSON objects; what is none is left out."""
        messages = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_PACKETS):
                try:
                    packet = self._socket.recv(PACKET_BYTES)
                except ConnectionError:  # the rank has ended without reading everything: what it said comes after this
                    continue
                if not packet:
                    self.ended = True
                    break
                with contextlib.suppress(ValueError, RecursionError):
                    messages.append(json.loads(packet))
        return [message for message in messages if isinstance(message, dict)]

    def close(self) -> None:
        self._socket.close()
