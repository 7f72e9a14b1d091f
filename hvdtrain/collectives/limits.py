"""Limits on the time in which all ranks must start and end: libraries would wait longer, or forever, for a lost rank.

Imports neither a framework nor NumPy: a process may end before it loads them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

from hvdtrain.errors import TrainingError
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.processes import TICK_S, RunningTime
from hvdtrain.system.run_end import Failure

LIBRARY_TIMEOUT_S = 24 * 3600
"""How long libraries are told to wait for another rank, at the start and in each collective: `limited_start` limits the
start, and the watchdog each step. The timers of libraries also end jobs that were suspended for longer than they run,
when one rank is resumed before another."""
GRACE_S = 2.0
"""A library that has a limit of its own, or rank 0, may report first: its message says more."""
STORE_TIMEOUT_S = 2.0
HOROVOD_MODULES = ("horovod.mxnet", "horovod.torch", "horovod.tensorflow")


@contextlib.contextmanager
def limited_start() -> Iterator[None]:
    """End this process with exit status 1 if the block, which waits for all ranks, takes longer than --start-timeout.

    Raises UserError if the limit is invalid.
    """
    rank, limit_s, started = rank_info.detect(), rank_info.start_timeout_s(), threading.Event()
    if rank.size == 1:
        yield
        return
    threading.Thread(target=_end_unless, args=(started, rank, limit_s), name="start limit", daemon=True).start()
    try:
        yield
    finally:
        started.set()


def _end_unless(started: threading.Event, rank: rank_info.RankInfo, limit_s: float) -> None:
    clock = RunningTime()
    while clock.seconds < limit_s + GRACE_S:
        if started.wait(TICK_S):
            return
        clock.tick()
    absent = _not_in_store(rank.size)
    if rank.rank:
        time.sleep(GRACE_S)
    reason = f"not all {rank.size} ranks have started within {limit_s:g} s"
    if absent:
        reason = f"rank {', '.join(map(str, absent))} did not initialize Horovod within {limit_s:g} s"
    remedy = f"check what it does, or give launch a longer --start-timeout (elsewhere {rank_info.START_TIMEOUT})"
    failure = Failure(reason, remedy, rank=absent[0] if absent else None, stands_alone=bool(absent))
    if not agent_pipe.send(failure):
        print(f"hvdtrain: {failure.of_rank(rank.rank, '')}", file=sys.stderr, flush=True)
    os._exit(TrainingError.exit_status)  # unlike an invalid option, a slow or lost host may be better the next time


def _not_in_store(size: int) -> list[int]:
    """Ranks that have no address in the rendezvous server of Horovod's Gloo; empty where there is no such server."""
    address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}", "") for name in ("ADDR", "PORT"))
    absent = []
    try:
        for rank in range(size):
            with socket.create_connection((address, int(port)), STORE_TIMEOUT_S) as server:
                server.sendall(f"GET /global/{rank} HTTP/1.0\r\n\r\n".encode())
                absent += [rank] if b" 404 " in server.recv(64) else []
    except (OSError, ValueError):
        return []
    return absent if len(absent) < size else []


def shut_down_horovod(limit_s: float) -> None:
    """Shut down Horovod where this process has initialized it; an end without that looks to other ranks like a failure.

    Horovod ends its connections on all ranks together. A rank that does not respond is waited for `limit_s` seconds.
    """
    loaded = [sys.modules[name] for name in HOROVOD_MODULES if name in sys.modules]
    threads = [threading.Thread(target=hvd.shutdown, daemon=True) for hvd in loaded]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
