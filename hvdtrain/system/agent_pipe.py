"""How a rank tells its agent why it fails: as data through a pipe, so that the launcher can compare the ranks' errors.

The launcher reports the error that came first, once. Without an agent, which gives the rank the pipe, the rank prints
its error itself.
"""

from __future__ import annotations

import json
import os
import stat
from typing import NamedTuple

VARIABLE = "HVDTRAIN_AGENT_PIPE"
"""Environment variable of a rank: the pipe's file descriptor and inode, as in `7:4711`."""
LONGEST = 8000
"""Characters of a text. Nothing is read from the pipe before the rank ends, so all of a message has to fit into it."""


class RankError(NamedTuple):
    """Why a rank failed."""

    reason: str
    remedy: str = ""
    retry: bool | None = None
    """Whether a restart may succeed: not where options and data alone decide the failure; None if that is unknown."""

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


def new_pipe() -> tuple[int, int, str]:
    """A pipe: the ends to read and to write, and the value of VARIABLE."""
    reading, writing = os.pipe()
    return reading, writing, f"{writing}:{os.fstat(writing).st_ino}"


def send(error: RankError) -> bool:
    """Whether an agent took the error: then it is the launcher that prints it."""
    descriptor, _, inode = os.environ.get(VARIABLE, "").partition(":")
    try:
        found = os.fstat(int(descriptor))
        if not stat.S_ISFIFO(found.st_mode) or str(found.st_ino) != inode:  # of a process that has no such pipe
            return False
        cut = error._replace(reason=error.reason[:LONGEST], remedy=error.remedy[:LONGEST])
        message = json.dumps(cut._asdict()).encode() + b"\n"
        os.set_blocking(int(descriptor), False)
        return os.write(int(descriptor), message) == len(message)
    except (ValueError, OSError):
        return False


def receive(reading: int) -> RankError | None:
    """What the rank, which has ended, sent first; None where it sent nothing that is valid."""
    os.set_blocking(reading, False)
    data = b""
    try:
        while received := os.read(reading, 1 << 16):
            data += received
    except BlockingIOError:  # a process that the rank left behind holds the other end
        pass
    try:
        return parse(json.loads(data.partition(b"\n")[0]))
    except ValueError:
        return None


def parse(fields: object) -> RankError:
    """An error from its JSON form. Raises ValueError where it has another form."""
    match fields:
        case {"reason": str(reason), "remedy": str(remedy), "retry": bool() | None as retry}:
            return RankError(reason, remedy, retry)
    raise ValueError("not the error of a rank")
