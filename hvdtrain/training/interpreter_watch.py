"""Ends a process in which Python no longer runs: `python interpreter_watch.py PID NAME`, started by its watchdog.

A library that keeps the interpreter's lock stops all Python threads of the process, also the watchdog's. So this is a
process of its own, which imports nothing of the package. Each line that it reads says for how many seconds there may be
no further line. It counts seconds in which both processes run: a timer of the C library would end a process as soon as
it is resumed after it was suspended for longer.
"""

import contextlib
import os
import select
import signal
import sys
import time

TICK_S = 0.5
STACKS_S = 1.0
"""How long the process has, after SIGQUIT, to write the stacks of its threads."""


def main(pid: int, name: str) -> None:
    """Watch process `pid` until standard input ends; `name` is what messages call it."""
    allowed_s, silent_s = float("inf"), 0.0
    while silent_s <= allowed_s:
        if not select.select([0], [], [], TICK_S)[0]:
            silent_s += 0 if is_stopped(pid) else TICK_S
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return
        allowed_s, silent_s = float(received.split()[-1]), 0.0
    text = f"Python has not run for {silent_s:.0f} s, as a library keeps the interpreter's lock; ending this process"
    print(f"hvdtrain: {name}: {text}", file=sys.stderr, flush=True)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGQUIT)
        time.sleep(STACKS_S)
        os.kill(pid, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", errors="replace") as status:
        return status.read().rpartition(")")[2].split()[0] in "Tt"


if __name__ == "__main__":
    with contextlib.suppress(OSError, KeyboardInterrupt):  # the process is gone
        main(int(sys.argv[1]), sys.argv[2])
