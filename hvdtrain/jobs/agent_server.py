"""The supervisor's port: agents prove there that they know the job's token; strangers cost little, and are closed.

A stranger is a connection without a proof. Strangers are limited in number and in time, and a process without a free
file descriptor gives up strangers first, so that idle or half-open connections keep no rank out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from hvdtrain.jobs import protocol
from hvdtrain.jobs.background import start_task
from hvdtrain.jobs.job import Job, has_other_hosts
from hvdtrain.jobs.protocol import Greeting
from hvdtrain.system.credentials import proof
from hvdtrain.system.network import address_of, interfaces

MAX_STRANGERS = 128
"""Strangers at a time, beyond one for each rank: of more, the oldest are closed."""
PROOF_S = 10.0
"""How long a stranger may take for its proof; an agent waits less than this for each answer, and tries again."""
PAUSE_S = 0.1
"""How long no connection is accepted after one for which there was no file descriptor."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def listening(job: Job) -> tuple[str, list[str]]:
    """The address on which to listen, empty for all of this host, and those at which agents look for it.

    Raises UserError for an interface that has no address.
    """
    if job.interface or job.launcher == "local":
        address = address_of(job.interface or "lo")
        return address, [address]
    known = interfaces()
    addresses = [interface.address for interface in known if not interface.virtual]
    addresses = addresses or [interface.address for interface in known]
    # Loopback comes last, and is left out for agents on other hosts, where it does not lead to this one.
    return "", addresses + ([] if addresses and has_other_hosts(job, os.environ) else ["127.0.0.1"])


class AgentServer:
    """Listens for the agents of a job, on all addresses where `address` is empty.

    serve: takes the connection of an agent, from its proof to its end.
    """

    def __init__(self, address: str, token: str, ranks: int, serve: Serve) -> None:
        """Call it in the event loop."""
        self._token, self._max_strangers, self._serve = token, ranks + MAX_STRANGERS, serve
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[asyncio.Task[None], None] = {}
        """In the order in which they came."""
        self._agents: set[asyncio.Task[None]] = set()
        # The agents of all hosts connect at about the same time.
        self._socket = socket.create_server((address, 0), backlog=socket.SOMAXCONN)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self._listen()

    def close(self) -> None:
        """Accept no more; agents stay connected."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for stranger in self._strangers:
            stranger.cancel()

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it has left again
            return
        except OSError:  # no file descriptor or no memory for it
            self._close_oldest()
            self._loop.remove_reader(self._socket)
            self._loop.call_later(PAUSE_S, self._listen)
            return
        task = start_task(self._on_connection(connection))
        self._strangers[task] = None
        task.add_done_callback(self._on_end)
        if len(self._strangers) > self._max_strangers:
            self._close_oldest()

    def _close_oldest(self) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest:
            self._strangers.pop(oldest)
            oldest.cancel()

    async def _on_connection(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=protocol.LINE_BYTES)
        is_agent = False
        try:
            with contextlib.suppress(ValueError, OSError, asyncio.TimeoutError):
                is_agent = await asyncio.wait_for(authenticate(reader, writer, self._token), PROOF_S)
            if is_agent:
                task = asyncio.current_task()
                assert task
                self._strangers.pop(task, None)
                self._agents.add(task)
                await self._serve(reader, writer)
        finally:
            writer.close()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._agents.discard(task)


async def authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> bool:
    """The other side of `protocol.authenticate`; False for a caller that does not know the token.

    Raises ValueError or OSError for a caller that sends no messages.
    """
    first, challenge = protocol.decode(await reader.readline()), secrets.token_hex(16)
    if not isinstance(first, Greeting):
        return False
    writer.write(protocol.encode(Greeting(challenge, proof(token, first.challenge, "supervisor"))))
    answer = protocol.decode(await reader.readline())
    return isinstance(answer, Greeting) and protocol.is_proof(answer.proof, token, challenge, "rank")
