"""The pipes between a rank's agent and its program: memberships go to it, and what it prints comes back."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import socket
import threading
from typing import IO

from hvdtrain.jobs import protocol
from hvdtrain.jobs.protocol import FRAME, STREAMS
from hvdtrain.system import agent_pipe
from hvdtrain.system.membership import Membership


class MembershipPipe(threading.Thread):
    """Hands memberships to the program, which may not read for long: this thread waits for it, and the agent does not.

    reading: the program's end. variable: the value of `membership.VARIABLE` for the program.
    """

    def __init__(self) -> None:
        super().__init__(name="memberships", daemon=True)
        self.reading, self._writing = os.pipe()
        self.variable = agent_pipe.named(self.reading)
        self._queue = queue.SimpleQueue[bytes]()

    def send(self, membership: Membership, supervisor: str) -> None:
        """Hand a membership to the program, after those before it. The program has to be started.

        supervisor: the address of the supervisor's host, where the rendezvous server of the membership is.
        """
        address, port = membership.store
        self._queue.put(protocol.encode(membership._replace(store=(address or supervisor, port))))
        if not self.ident:
            self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):  # the program has ended
            while line := self._queue.get():
                while line:
                    line = line[os.write(self._writing, line) :]


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
