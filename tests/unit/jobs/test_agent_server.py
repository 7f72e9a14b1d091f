"""The launcher's port: agents get in, whoever else is there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

import pytest
from support.jobs import wait_for
from support.strangers import SENT, is_closed, strangers

from hvdtrain.jobs import agent_server, protocol
from hvdtrain.jobs.agent_server import MAX_STRANGERS, AgentServer

TOKEN = "a secret"


def agent(port: int) -> str:
    """Connect as an agent does; what the server then sends."""
    channel = protocol.authenticate(socket.create_connection(("127.0.0.1", port), 60), TOKEN)
    return str(channel.receive()["text"])


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(protocol.encode({"text": "welcome"}))
    await reader.read()


@pytest.mark.guarantee("strangers")
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_strangers_keep_no_agent_out(sent):
    """More than are kept: the oldest are closed."""

    async def check() -> None:
        server = AgentServer("127.0.0.1", TOKEN, 1, served)
        with contextlib.ExitStack() as stack:
            many = strangers(("127.0.0.1", server.port), 3 * MAX_STRANGERS, sent)
            made = await asyncio.to_thread(stack.enter_context, many)
            assert await asyncio.to_thread(agent, server.port) == "welcome"
            await asyncio.to_thread(
                wait_for, lambda: sum(map(is_closed, made)) >= 2 * MAX_STRANGERS - 1, agent_server.PROOF_S / 2
            )
            assert all(map(is_closed, made[:MAX_STRANGERS]))
        server.close()

    asyncio.run(check())


def test_a_stranger_has_little_time(monkeypatch):
    monkeypatch.setattr(agent_server, "PROOF_S", 0.1)

    async def check() -> None:
        server = AgentServer("127.0.0.1", TOKEN, 1, served)
        with strangers(("127.0.0.1", server.port), 2, b"{") as made:
            await asyncio.to_thread(wait_for, lambda: all(map(is_closed, made)), 30)
        server.close()

    asyncio.run(check())


def test_an_agent_gets_in_when_file_descriptors_are_free_again(monkeypatch):
    """Until then the server does not turn in circles, and says nothing."""
    accept, errors = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 2
    monkeypatch.setattr(socket.socket, "accept", lambda own: fail(errors.pop()) if errors else accept(own))

    def fail(error: OSError) -> None:
        raise error

    async def check() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: pytest.fail(str(context)))
        server = AgentServer("127.0.0.1", TOKEN, 1, served)
        assert await asyncio.to_thread(agent, server.port) == "welcome"
        assert not errors
        server.close()

    asyncio.run(check())
