"""The supervisor's port: agents prove there that they know the job's token."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from hvdtrain.jobs import protocol
from hvdtrain.jobs.event_loop import start_task
from hvdtrain.jobs.job import Job, has_other_hosts
from hvdtrain.system.handshake import Callers
from hvdtrain.system.network import address_of, interfaces

MAX_STRANGERS = 128
"""Connections without a proof at a time, beyond one for each rank."""
PROOF_S = 10.0
"""How long they may take for it; an agent waits less than this for each answer, and tries again."""
LOOK_S = 1.0
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
        self._serve, self._loop = serve, asyncio.get_running_loop()
        # The agents of all hosts connect at about the same time.
        listener = socket.create_server((address, 0), backlog=socket.SOMAXCONN)
        self.port = int(listener.getsockname()[1])
        self._callers = Callers(listener, token, protocol.PURPOSE, ranks + MAX_STRANGERS, PROOF_S)
        self._loop.add_reader(self._callers.fileno(), self._admit)
        self._look()

    def close(self) -> None:
        """Accept no more; agents stay connected."""
        self._timer.cancel()
        self._loop.remove_reader(self._callers.fileno())
        self._callers.close()

    def _look(self) -> None:
        """Strangers whose time is over are closed also where nothing else happens."""
        self._admit()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _admit(self) -> None:
        for connection in self._callers.take():
            start_task(self._on_agent(connection))

    async def _on_agent(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=protocol.LINE_BYTES)
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()
