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
from typing import Any, NamedTuple

from hvdtrain.system.run_end import Failure

VARIABLE = "HVDTRAIN_AGENT_PIPE"
"""Environment variable of a rank: the pipe's file descriptor and inode, as in `7:4711`."""
MAX_TEXT = 8000
"""Characters of a text. A message is written at once or not at all, so it has to fit into the pipe."""


class OpenedRun(NamedTuple):
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


class Reached(NamedTuple):
    """How far a rank is with its membership."""

    stage: str
    """One of STAGES."""
    number: int
    """Of the newest membership that this rank knows; 0 before the first."""


class NotRunning(NamedTuple):
    """A member does not run: it is stopped, or its host is down. It is to be ended, and counts as lost."""

    rank: int
    reason: str


class Excluded(NotRunning):
    """A member computes wrong bits. It is to be ended, and its host is not to be used again."""


Said = Failure | OpenedRun | Reached | NotRunning


def new_pipe() -> tuple[int, int, str]:
    """A pipe: the ends to read and to write, and the value of VARIABLE."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing, named(writing)


def named(end: int) -> str:
    """The value of a variable by which a program finds an end of a pipe that it inherits: see `descriptor`."""
    return f"{end}:{os.fstat(end).st_ino}"


def send(said: Said) -> bool:
    """Whether somebody took it: then it is the launcher that prints a failure."""
    try:
        writing = descriptor(VARIABLE)
        message = json.dumps(_message(said)).encode() + b"\n"
        os.set_blocking(writing, False)
        return os.write(writing, message) == len(message)
    except (ValueError, OSError):
        return False


def _message(said: Said) -> dict[str, Any]:
    match said:
        case OpenedRun():
            return {"run": said._asdict()}
        case Reached():
            return {"reached": said._asdict()}
        case NotRunning():
            name = "excluded" if isinstance(said, Excluded) else "not_running"
            return {name: {"rank": said.rank, "reason": said.reason[:MAX_TEXT]}}
    return {"failure": said._replace(reason=said.reason[:MAX_TEXT], remedy=said.remedy[:MAX_TEXT]).record()}


def parse(message: object) -> Said:
    """What a message says. Raises ValueError for one of another form."""
    match message:
        case {"failure": values}:
            return Failure.from_record(values)
        case {"run": {"folder": str(folder), "resumable": bool(resumable), "checkpoint": str(checkpoint)}}:
            return OpenedRun(folder, resumable, checkpoint)
        case {"reached": {"stage": str(stage), "number": int(number)}}:
            return Reached(stage, number)
        case {"not_running": {"rank": int(rank), "reason": str(reason)}}:
            return NotRunning(rank, reason)
        case {"excluded": {"rank": int(rank), "reason": str(reason)}}:
            return Excluded(rank, reason)
    raise ValueError("not a message of a rank")


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

    def failure(self) -> Failure | None:
        """The first failure among the messages that have arrived; None where there is none."""
        for message in self.receive():
            with contextlib.suppress(ValueError):
                said = parse(message)
                if isinstance(said, Failure):
                    return said
        return None

    def close(self) -> None:
        os.close(self._reading)
