"""Why a job failed: which of its ranks' failures was the first, and which only followed from it.

When a rank ends, collectives on the other ranks fail within milliseconds, and those ranks may end before it does.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.system.agent_pipe import RankError
from hvdtrain.system.processes import describe_status

LOST_PEER = (
    # pattern, and what prints it
    (r"HorovodInternalError", "Horovod: PyTorch and TensorFlow, for every failed collective"),
    (r"Horovod has been shut down", "Horovod's core, after another rank's shutdown; in MXNet and Keras"),
    (r"Horovod background loop uncaught exception", "Horovod's core, where its controller loses a rank"),
    (r"\bgloo::\w*Exception|gloo/transport/\S+:\d+\]", "Gloo: in Horovod and torch.distributed"),
    (r"Connection (closed|reset) by peer|Broken pipe", "TCP, in all libraries: the other process has ended"),
    (r"Software caused connection abort|Transport endpoint is not connected", "TCP, as well"),
    (r"\bnccl(RemoteError|SystemError|InternalError)\b|NCCL (error|communicator was aborted)", "NCCL"),
    (r"\bDist(Backend|Network|Store)Error\b", "torch.distributed"),
    (r"Watchdog caught collective operation timeout", "torch.distributed with NCCL"),
    (r"(Socket Timeout|wait timeout after \d+ ?ms)", "torch.distributed's store, whose server is rank 0"),
    (r"\bMPI_ERR_(PROC_FAILED|REVOKED|OTHER|COMM)\b|An error occurred in MPI_", "MPI"),
    (r"Collective ops is aborted by|[Cc]oordination service|is unhealthy|Socket closed", "TensorFlow's collectives"),
    (r"failed to connect to all addresses|errors_impl\.(Unavailable|Aborted)Error", "TensorFlow over gRPC"),
    (r"ps-lite/src/|[Dd]ead nodes? ", "MXNet's distributed KVStore"),
    (r"lost the ring neighbor", "hvdtrain's ring"),
)
"""How failures of collectives look that follow from another rank's end."""
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
LONG_ERRORS = r"tensorflow\.|mxnet\.|MXNetError|horovod\."
"""Exceptions whose message continues on further lines."""
SEARCHED_LINES = 8
"""Lines that are searched if a program does not end with a Python exception."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank failed."""

    rank: int
    host: str
    status: int | None
    """How its program ended, as Popen has it; None where its host or agent was lost."""
    tail: tuple[str, ...] = ()
    """The last lines that it printed."""
    error: RankError | None = None
    """What it told its agent; None for a program that is not hvdtrain's, or one that was killed."""

    @property
    def how(self) -> str:
        """`was killed by SIGKILL`."""
        if self.status is None:
            return "disconnected unexpectedly: its host or its agent there died"
        return describe_status(self.status)

    @property
    def by_itself(self) -> bool:
        """Whether the program ended itself, in C++ by SIGABRT: neither killed nor lost with its host."""
        return self.status is not None and (self.status > 0 or self.status == -signal.SIGABRT)

    @property
    def message(self) -> str:
        """What it said last: its error, or the last line that it printed; empty where it said nothing."""
        return self.error.reason if self.error else self.tail[-1] if self.tail else ""


def first_cause(ends: Sequence[RankEnd]) -> RankEnd:
    """The rank whose failure the others followed from. ends: in the order in which they were noticed, at least one."""
    return min(ends, key=_order)


def may_follow(end: RankEnd) -> bool:
    """Whether another rank may be the cause: this one lost a peer, or did not say why it ended."""
    return _order(end) > 0


def _order(end: RankEnd) -> int:
    """0 for a cause of its own, 1 for an end without an explanation, 2 for a lost peer."""
    if not end.by_itself:
        return 0
    return 2 if lost_peer(end) else 0 if end.message else 1


def lost_peer(end: RankEnd) -> str:
    """The library whose error says that another rank was lost; empty where the rank has a cause of its own."""
    text = end.error.reason if end.error else exception(end.tail)
    return next((source for pattern, source in LOST_PEER if re.search(pattern, text)), "")


def exception(lines: Sequence[str]) -> str:
    """The exception with which a program ended: of a chain the first one, from which the others followed.

    Without a traceback, such as from a program in C++, the last lines.
    """
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in lines]  # PyTorch's label
    starts = [number for number, line in enumerate(lines) if line.startswith(TRACEBACK)]
    if not starts:
        return "\n".join(lines[-SEARCHED_LINES:])
    first = len(starts) - 1
    while first and lines[starts[first] - 1].startswith(CHAINED):
        first -= 1
    following = [*starts[first + 1 :], len(lines)]
    said = [line for line in lines[starts[first] + 1 : following[0]] if not line.startswith("  ")]
    # After it a program may still print: what its libraries notice while they are unloaded is no cause.
    return "\n".join(said if re.match(LONG_ERRORS, said[0]) else said[:1]) if said else ""
