"""How far apart the cores of two processes are: the time that a value takes from one to the other and back.

It is short for cores that share a cache and several times as long for others, and an allreduce through shared memory
depends on it. On a virtual machine the host chooses the cores and may move them within seconds: repeated jobs differ.

usage: python benchmarks/core_to_core.py
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from itertools import count, islice
from multiprocessing.sharedctypes import RawArray
from statistics import median
from typing import Any

ROUND_TRIPS, MEASUREMENTS = 200, 50
CALL, REPLY, INTS = 0, 32, 64
"""Indices of the values in an array of 4-byte integers: 128 bytes apart, so that they share no cache line."""
MAX_LOOKS = 5_000_000
"""Looks at a value, about a quarter of a second, after which the other process counts as not running."""


def main() -> None:
    """Print the median time in which a process sees a value and the other its reply, 0.2 us of it the interpreter's."""
    context = multiprocessing.get_context("fork")
    shared = RawArray("i", INTS)
    replier = context.Process(target=reply, args=(shared,), daemon=True)
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("it cannot be measured on one core")
    replier.start()
    try:
        times, turns, values = [], count(1), as_view(shared)
        for _ in range(MEASUREMENTS):
            began = time.perf_counter()
            for turn in islice(turns, ROUND_TRIPS):
                values[CALL] = turn
                wait_for(values, REPLY, turn)
            times.append((time.perf_counter() - began) / ROUND_TRIPS)
        print(f"{median(times) * 1e9:,.0f} ns")
    finally:
        replier.kill()
        replier.join()


def reply(shared: Any) -> None:
    """The other process: write each value that comes."""
    values = as_view(shared)
    for turn in count(1):
        wait_for(values, CALL, turn)
        values[REPLY] = turn


def wait_for(values: memoryview, index: int, turn: int) -> None:
    """Look at a value until it is there; ends this process if other processes take the cores."""
    for _ in range(MAX_LOOKS):
        if values[index] == turn:
            return
    sys.exit("it cannot be measured here, as the cores are busy")


def as_view(shared: Any) -> memoryview:
    return memoryview(shared).cast("B").cast("i")


if __name__ == "__main__":
    main()
