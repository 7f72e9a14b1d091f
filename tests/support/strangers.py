"""Connections of strangers to a port: idle, with a part of a message, with none at all, and many of them."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator, Sequence

SENT = {
    "idle": b"",
    "a part of a proof": b"0" * 40,
    "no message": b"GET / HTTP/1.1\r\n\r\n",
    "a wrong proof": b"0" * (32 + 64),
    "a line without end": b"x" * (1 << 17),
}


@contextlib.contextmanager
def strangers(address: tuple[str, int], count: int, sent: bytes | Sequence[bytes]) -> Iterator[list[socket.socket]]:
    """Connections that stay open on this side, in the order in which they were made.

    sent: what each sends, or what they send in turns.
    """
    kinds = [sent] if isinstance(sent, bytes) else sent
    with contextlib.ExitStack() as stack:
        connections = []
        for number in range(count):
            connection = stack.enter_context(socket.create_connection(address, 60))
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # the other side has read enough, or has closed it
                connection.send(kinds[number % len(kinds)])
            connections.append(connection)
        yield connections


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection, as far as this one knows now."""
    while select.select([connection], [], [], 0)[0]:
        try:
            if not connection.recv(1 << 16):
                return True
        except BlockingIOError:
            return False
        except OSError:
            return True
    return False
