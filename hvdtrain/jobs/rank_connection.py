"""The supervisor's connection to the agent of one rank, and what the agent has reported."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from typing import Any

from hvdtrain.jobs import protocol
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.output import RankOutput
from hvdtrain.jobs.program_output import UNREAD_BYTES
from hvdtrain.jobs.protocol import Message
from hvdtrain.system.proof import proof
from hvdtrain.system.run_end import Failure

OUTPUT = {"stdout", "stderr"}


class RankConnection:
    """One rank. hello: the agent's first message, with the rank's number, host, address and versions."""

    def __init__(self, hello: Message, writer: asyncio.StreamWriter, console: Console) -> None:
        self.number, self.host = int(hello["rank"]), str(hello["host"])
        self.hello, self._writer = hello, writer
        self.output = RankOutput(self.number, console)
        self.status: int | None = None
        """How the program ended, as Popen has it; None while it runs."""
        self.failure: Failure | None = None
        """Why the program says that it failed."""
        self.disconnected = False
        self._console = console
        self._read = 0
        """Bytes of output of which the agent does not know yet that they were read."""
        self._program_ended = False
        self._waiting: asyncio.Task[None] | None = None
        """Ends when the console has room."""

    @property
    def name(self) -> str:
        return f"rank {self.number} on {self.host}"

    def send(self, **message: Any) -> None:
        if not self.disconnected:
            self._writer.write(protocol.encode(message))

    def on_output(self, message: Message, size: int) -> None:
        """Print what the program prints. While it runs it waits, by its agent, for room on the console."""
        self._program_ended |= "program_ended" in message
        for stream in OUTPUT & message.keys():
            self.output.write(stream, protocol.to_bytes(message[stream]))
            self._read += size
        if self._program_ended:
            self._acknowledge()
        elif self._console.full and not self._waiting:
            self._waiting = asyncio.create_task(self._wait_for_console())
        elif self._read > UNREAD_BYTES // 4 and not self._waiting:
            self._acknowledge()

    async def _wait_for_console(self) -> None:
        await self._console.room()
        self._waiting = None
        self._acknowledge()

    def _acknowledge(self) -> None:
        self.send(read=self._read)
        self._read = 0

    def end(self) -> None:
        """Ask the agent to end the program, without waiting for a host that no longer responds."""
        with contextlib.suppress(OSError):
            protocol.close_if_unacknowledged(self._writer.get_extra_info("socket"), protocol.UNREACHABLE_AFTER_S)
        self.send(end=True)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, console: Console
) -> RankConnection | None:
    """Authenticate a caller, as `protocol.authenticate` does on its side; None where it does not know the token.

    Raises ValueError, KeyError, TypeError or OSError for a caller that does not follow the protocol.
    """
    first, challenge = protocol.decode(await reader.readline()), secrets.token_hex(16)
    own = proof(token, str(first["challenge"]), "supervisor")
    writer.write(protocol.encode({"challenge": challenge, "proof": own}))
    answer = protocol.decode(await reader.readline())
    expected = proof(token, challenge, "rank")
    if not hmac.compare_digest(protocol.to_bytes(str(answer["proof"])), expected.encode()):
        return None
    hello = protocol.decode(await reader.readline())
    protocol.keep_alive(writer.get_extra_info("socket"))
    return RankConnection(hello, writer, console)
