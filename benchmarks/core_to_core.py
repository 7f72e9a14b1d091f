"""How far apart the cores of two processes are: the time that a value takes from one to the other and back.

It is short for cores that share a cache and several times as long for others, and an allreduce through shared memory
depends on it. On a virtual machine the host chooses the cores and may move them within seconds: repeated jobs differ.

usage: python benchmarks/core_to_core.py
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import count, islice
from statistics import median
from typing import Any

ROUND_TRIPS, MEASUREMENTS = 200, 50
CALL, REPLY, INTS = 0, 32, 64
"""Indices of the values in an array of 4-byte integers: 128 bytes apart, so that they share no cache line."""
STARTED, FIRST_TURN = 1, 2
"""Values that the processes write."""
MAX_LOOKS = 5_000_000
"""Looks at a value, about a quarter of a second, after which the other process counts as not running."""
START_S, LIMIT_S = 10.0, 1.0
"""Limits of the other process' start, and of the measurement, which takes some milliseconds on cores that are free."""


def round_trip_s() -> float | None:
    """Median seconds in which a process sees a value and the other its reply, 0.2 us of them the interpreter's.

    None with a single core, where other processes take the cores, and where no process can be started.
    """
    if len(os.sched_getaffinity(0)) < 2:
        return None
    context = multiprocessing.get_context("spawn")
    try:
        shared = context.RawArray("i", INTS)
        replier = context.Process(target=_reply, args=(shared,), daemon=True)
        replier.start()
    except OSError:
        return None
    try:
        return _measure(_values(shared), replier.is_alive)
    finally:
        replier.kill()
        replier.join()


def _measure(values: memoryview, replies: Callable[[], bool]) -> float | None:
    started_until = time.monotonic() + START_S
    while values[REPLY] != STARTED:  # the interpreter of the other process starts
        if time.monotonic() > started_until or not replies():
            return None
    until, times = time.monotonic() + LIMIT_S, []
    turns = count(FIRST_TURN)
    for _ in range(MEASUREMENTS):
        began = time.perf_counter()
        for turn in islice(turns, ROUND_TRIPS):
            values[CALL] = turn
            if not _sees(values, REPLY, turn):
                return None
        times.append((time.perf_counter() - began) / ROUND_TRIPS)
        if time.monotonic() > until:
            return None
    return median(times)


def _reply(shared: Any) -> None:
    values = _values(shared)
    values[REPLY] = STARTED
    for turn in count(FIRST_TURN):
        if not _sees(values, CALL, turn):
            return
        values[REPLY] = turn


def _sees(values: memoryview, index: int, turn: int) -> bool:
    for _ in range(MAX_LOOKS):  # noqa: SIM110  (any() takes several times as long)
        if values[index] == turn:
            return True
    return False


def _values(shared: Any) -> memoryview:
    return memoryview(shared).cast("B").cast("i")


if __name__ == "__main__":
    trip_s = round_trip_s()
    print("it cannot be measured here" if trip_s is None else f"{trip_s * 1e9:,.0f} ns")
