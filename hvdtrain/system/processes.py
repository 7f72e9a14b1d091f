"""Starting and ending processes on Linux: exit statuses, signals, ports."""

from __future__ import annotations

import contextlib
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


def is_second_request(number: int, seconds: float) -> bool:
    """Whether a signal that was received that long after the first of its kind asks to end at once.

    Earlier it is the same request: Slurm, systemd and Kubernetes send several, and a terminal signals a whole group of
    processes, a rank and its launcher as well. SIGUSR1 only ever asks for a checkpoint.
    """
    return seconds > {signal.SIGTERM: 3.0, signal.SIGINT: 0.2}.get(signal.Signals(number), float("inf"))


def would_end(pid: int, number: int) -> bool:
    """Whether that signal would end a process: it neither catches nor ignores it (proc(5), SigIgn and SigCgt)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # the process has ended
        return False
    masks = dict(line.split(":", 1) for line in status.splitlines())
    return not (int(masks["SigIgn"], 16) | int(masks["SigCgt"], 16)) >> (number - 1) & 1


class PortReservation:
    """Two consecutive free ports of an interface, which no other program gets until `release`, or this process ends.

    The sockets are bound and do not listen. Linux gives such a port to nobody who asks for any free one, but to a
    server that asks for this one and sets SO_REUSEADDR, as servers do. Raises OSError if there is no such interface.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._sockets: list[socket.socket] = []
        while len(self._sockets) < 2:
            self.release()
            self._sockets.append(_bound(address, 0))
            with contextlib.suppress(OSError, OverflowError):
                self._sockets.append(_bound(address, self.port + 1))

    @property
    def port(self) -> int:
        """The first of the ports."""
        return int(self._sockets[0].getsockname()[1])

    def release(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


def _bound(address: str, port: int) -> socket.socket:
    """A socket that is bound to a port which no other socket has, and that lets a server have it, too."""
    found = socket.socket()
    try:
        found.bind((address, port))
    except (OSError, OverflowError):
        found.close()
        raise
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return found


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is free now on an interface together with the next one, which `rank_info.rendezvous` uses."""
    reserved = PortReservation(address)
    port = reserved.port
    reserved.release()
    return port
