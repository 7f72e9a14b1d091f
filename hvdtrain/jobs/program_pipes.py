"""The pipes through which a rank's agent gets what its program prints."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from typing import IO

from hvdtrain.jobs.protocol import FRAME, STREAMS

READ_BYTES = 1 << 16


class ProgramOutput(threading.Thread):
    """Copies what a program prints to its connection, until all processes that had its pipes have closed them.

    pipes: by the name of the stream.
    """

    def __init__(self, pipes: dict[str, IO[bytes]], connection: socket.socket) -> None:
        super().__init__(name="output", daemon=True)
        self._pipes, self._connection = pipes, connection
        self.frame = b""
        """What is being sent: it may wait until the supervisor has read what was sent before."""

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for name, pipe in self._pipes.items():
                selector.register(pipe, selectors.EVENT_READ, STREAMS.index(name))
            while selector.get_map():
                for key, _ in selector.select():
                    if data := os.read(key.fd, READ_BYTES):
                        self._send(FRAME.pack(key.data, len(data)) + data)
                    else:
                        selector.unregister(key.fileobj)
        self.close()

    def _send(self, frame: bytes) -> None:
        self.frame = frame
        with contextlib.suppress(OSError):  # where the supervisor has ended, what is printed is lost
            self._connection.sendall(frame)
        self.frame = b""

    def close(self) -> None:
        """Send nothing any more, from any thread: one that waits for the supervisor goes on."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
