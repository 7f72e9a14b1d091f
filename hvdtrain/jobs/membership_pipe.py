"""The pipe by which a rank's agent hands memberships to its program, in a job that survives lost ranks."""

from __future__ import annotations

import os
import selectors
from collections import deque

from hvdtrain.jobs import protocol
from hvdtrain.jobs.protocol import Message
from hvdtrain.system import agent_pipe


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

    def send(self, membership: Message, supervisor: str, selector: selectors.BaseSelector) -> None:
        """Hand a membership to the program, after those before it.

        supervisor: the address of the supervisor's host, where the rendezvous server of the membership is. selector:
        calls `flush` when the program has read some.
        """
        address, port = membership["store"]
        self._queue.append(protocol.encode({**membership, "store": [address or supervisor, port]}))
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
