"""What the program of a rank prints, on its way from the program's pipes to the supervisor.

No more than UNREAD_BYTES are on the way. The rest waits in the pipes, and the program with it, until the supervisor has
acknowledged some of them. So a slow console slows the program down instead of filling the launcher's memory. And for a
launcher that is suspended, the kernel of its host has space for all that was sent, and acknowledges it: only a host
that is lost leaves data without an acknowledgment by TCP (`protocol.keep_alive`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
from typing import IO, Any

from hvdtrain.jobs import protocol
from hvdtrain.jobs.protocol import Channel, Closed

UNREAD_BYTES = 1 << 15
"""Encoded, as all sizes here. Linux buffers 64 KiB for a process that reads nothing, unless its limits are changed."""
READ_BYTES = 1 << 11
"""Bytes of the program in a message, each of which has up to 6 in JSON."""


class ProgramOutput:
    """The pipes of a program, read in the agent's event loop. pipes: by `stdout` and `stderr`."""

    def __init__(self, channel: Channel | None, selector: selectors.BaseSelector, pipes: dict[str, IO[bytes]]) -> None:
        self._channel, self._selector, self._open = channel, selector, pipes
        self._unread = 0
        self._limit = float(UNREAD_BYTES)
        self._update()

    @property
    def ended(self) -> bool:
        """Whether all processes that had the pipes have closed them."""
        return not self._open

    @property
    def waits(self) -> bool:
        """Whether the pipes are not read, as the supervisor has not read what was sent."""
        return self._unread >= self._limit

    def forward(self, pipe: Any, name: str) -> None:
        """Send what is in a pipe that is readable."""
        if self.waits:  # since another pipe was read, in the same moment
            return
        data = os.read(pipe.fileno(), READ_BYTES)
        if not data:
            self._selector.unregister(pipe)
            del self._open[name]
        elif self._channel:
            with contextlib.suppress(Closed):
                self._unread += self._channel.send(**{name: protocol.to_text(data)})
        self._update()

    def on_read(self, count: int) -> None:
        """The supervisor has read as many bytes."""
        self._unread -= count
        self._update()

    def on_program_end(self) -> None:
        """What the pipes still hold is not to wait for the console: it may say why the program failed."""
        if self._channel:
            with contextlib.suppress(Closed):
                self._channel.send(program_ended=True)

    def send_all(self) -> None:
        """Wait for the supervisor no longer: the job ends, or the supervisor has ended."""
        self._limit = float("inf")
        self._update()

    def _update(self) -> None:
        """Let the selector watch the pipes only if they are to be read."""
        for name, pipe in self._open.items():
            registered = pipe in self._selector.get_map()
            if self.waits and registered:
                self._selector.unregister(pipe)
            elif not self.waits and not registered:
                self._selector.register(pipe, selectors.EVENT_READ, name)
