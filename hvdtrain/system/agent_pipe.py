"""What a rank says to its agent, as data through a pipe: which run it has opened, and why it fails.

So the launcher knows the run's folder and compares the ranks' failures. It reports the failure that came first, once.
In a job that survives lost ranks (`membership.py`), a rank also says when it can join, and which rank is to be ended.
Without an agent, which gives the rank the pipe, the rank prints its failure itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import Any

from hvdtrain.system.run_end import Failure

VARIABLE = "HVDTRAIN_AGENT_PIPE"
"""Environment variable of a rank: the pipe's file descriptor and inode, as in `7:4711`."""
SUPERVISOR = "HVDTRAIN_SUPERVISOR"
"""Environment variable of an agent: the supervisor's addresses and port, as in 10.0.0.1,192.168.0.1:4711."""
MAX_TEXT = 8000
"""Characters of a text. A message is written at once or not at all, so it has to fit into the pipe."""


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


Report = Failure | OpenedRun | Reached | NotRunning
KINDS = {kind.__name__: kind for kind in (Failure, OpenedRun, Reached, NotRunning, Excluded)}


def new_pipe() -> tuple[int, int, str]:
    """A pipe: the ends to read and to write, and the value of VARIABLE."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing, named(writing)


def named(end: int) -> str:
    """The value of a variable by which a program finds an end of a pipe that it inherits: see `descriptor`."""
    return f"{end}:{os.fstat(end).st_ino}"


def send(said: Report) -> bool:
    """Whether somebody took it: then it is the launcher that prints a failure."""
    try:
        writing = descriptor(VARIABLE)
        values = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in asdict(said).items()}
        message = json.dumps({type(said).__name__: values}).encode() + b"\n"
        os.set_blocking(writing, False)
        return os.write(writing, message) == len(message)
    except (ValueError, OSError):
        return False


def descriptor(variable: str) -> int:
    """The file descriptor of a pipe of which a variable tells descriptor and inode. Raises OSError if it is not open.

    variable: the variable's name.
    """
    number, _, inode = os.environ.get(variable, "").partition(":")
    status = os.fstat(int(number) if number.isdecimal() else -1)
    if not stat.S_ISFIFO(status.st_mode) or str(status.st_ino) != inode:  # of a process that has no such pipe
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return int(number)


class Receiver:
    """The end of a pipe that is read; it never waits."""

    def __init__(self, reading: int) -> None:
        self._reading, self._rest = reading, b""
        self.ended = False
        """Whether all processes that had the other end have closed it."""

    def fileno(self) -> int:
        return self._reading

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived, as JSON objects; what is none is left out."""
        try:
            received = os.read(self._reading, 1 << 16)  # a whole pipe; a program may write faster than this reads
            self._rest, self.ended = self._rest + received, not received
        except BlockingIOError:  # the rank, or a process that it left behind, holds the other end
            pass
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > 1 << 16:
            self._rest = b""
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, dict)]

    def close(self) -> None:
        os.close(self._reading)
