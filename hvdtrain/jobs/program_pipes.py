"""The pipes between a rank's agent and its program: memberships go to it, and what it prints comes back."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections import deque
from typing import IO

from hvdtrain.jobs import protocol
from hvdtrain.jobs.protocol import FRAME, STREAMS
from hvdtrain.system import agent_pipe
from hvdtrain.system.membership import Membership


class MembershipPipe:
    """The agent's end. It never waits for a program that does not read, and keeps all that is not written yet.

    reading: the program's end. variable: the value of `membership.VARIABLE` for the program.
    """

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self.variable = agent_pipe.named(self.reading)
        self._queue = deque[bytes]()

    def fileno(self) -> int:
        return self._writing

    def send(self, membership: Membership, supervisor: str, selector: selectors.BaseSelector) -> None:
        """Hand a membership to the program, after those before it.

        supervisor: the address of the supervisor's host, where the rendezvous server of the membership is. selector:
        calls `flush` when the program has read some.
        """
        address, port = membership.store
        self._queue.append(protocol.encode(membership._replace(store=(address or supervisor, port))))
        self.flush(selector)

    def flush(self, selector: selectors.BaseSelector) -> None:
        """Write as much as the pipe takes now."""
        try:
            while self._queue:
                line = self._queue.popleft()
                written = 0
                try:
                    written = os.write(self._writing, line)
                finally:
                    if written < len(line):
                        self._queue.appendleft(line[written:])
        except BlockingIOError:
            pass
        except OSError:  # the program has ended
            self._queue.clear()
        watched = self in selector.get_map()
        if self._queue and not watched:
            selector.register(self, selectors.EVENT_WRITE, self.flush)
        elif watched and not self._queue:
            selector.unregister(self)


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
