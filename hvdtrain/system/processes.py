"""Starting and ending processes on Linux: exit statuses, parent death signals, free ports."""

from __future__ import annotations

import ctypes
import signal
import socket
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, for whatever reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def describe_status(status: int) -> str:
    """How a process ended, as the end of a sentence; status as Popen has it: less than 0 for a signal."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def shell_status(status: int) -> int:
    """Popen's status as a shell reports it: 128 + N for signal N."""
    return 128 - status if status < 0 else status


def would_end(pid: int, number: int) -> bool:
    """Whether that signal would end a process: it neither catches nor ignores it (proc(5), SigIgn and SigCgt)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # the process has ended
        return False
    masks = dict(line.split(":", 1) for line in status.splitlines())
    return not (int(masks["SigIgn"], 16) | int(masks["SigCgt"], 16)) >> (number - 1) & 1


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is free on an interface together with the next one, which `rank_info.rendezvous` uses."""
    while True:
        with socket.create_server((address, 0)) as first:
            port = first.getsockname()[1]
            try:
                with socket.create_server((address, port + 1)):
                    return port
            except OSError:
                continue
