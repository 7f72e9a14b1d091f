"""Why a job failed: which of its ranks' failures was the first, and which only followed from it.

When a rank ends, collectives on the other ranks fail within milliseconds, and those ranks may end before it does.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from hvdtrain.system.run_end import Failure

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
    (r"errors\.PeerLost\b", "hvdtrain's ring, in a traceback"),
)
"""How libraries report that a collective failed as another rank has ended; hvdtrain's own ranks say it in a field."""
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
LONG_ERRORS = r"tensorflow\.|mxnet\.|MXNetError|horovod\."
"""Exceptions whose message continues on further lines."""
SEARCHED_LINES = 8
"""Lines that are searched if a program does not end with a Python exception."""


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The failure from which the others followed. failures: in the order in which they were noticed, at least one."""
    return min(failures, key=_order)


def may_follow(failure: Failure) -> bool:
    """Whether another rank may be the cause: this one lost a peer, or did not say why it ended."""
    return _order(failure) > 0


def signature(failure: Failure) -> tuple[object, ...]:
    """Equal for failures that are the same; empty where chance has a part, as in a killed rank or a lost host."""
    message = _message(failure)
    known = _by_itself(failure) and message and not lost_peer(failure) and not failure.retry
    return (failure.rank, failure.status, message) if known else ()


def _order(failure: Failure) -> int:
    """0 for a cause of its own, 1 for an end without an explanation, 2 for a lost peer."""
    if not _by_itself(failure):
        return 0
    return 2 if lost_peer(failure) else 0 if _message(failure) else 1


def _by_itself(failure: Failure) -> bool:
    """Whether the program ended itself, in C++ by SIGABRT: neither killed nor lost with its host."""
    return failure.status is not None and (failure.status > 0 or failure.status == -signal.SIGABRT)


def _message(failure: Failure) -> str:
    """What the rank said last: its reason, or the last line that it printed; empty where it said nothing."""
    return failure.reason or (failure.last_lines[-1] if failure.last_lines else "")


def lost_peer(failure: Failure) -> bool:
    """Whether the rank only lost another one, by its own word or by the error of a library."""
    text = failure.reason or exception(failure.last_lines)
    return failure.lost_peer or any(re.search(pattern, text) for pattern, _ in LOST_PEER)


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
    # After it a program may still print: what its libraries notice while they are unloaded is not a cause.
    return "\n".join(said if re.match(LONG_ERRORS, said[0]) else said[:1]) if said else ""
