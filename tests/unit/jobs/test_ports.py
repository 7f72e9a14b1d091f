"""Ports of the launcher, of Gloo's rendezvous server and of the ring's: ranks get in, whoever else is there.

Callers without the job's token learn and change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import pickle
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.jobs import wait_for
from support.strangers import SENT, is_closed, strangers
from support.untrusted import PASSWORD, Harm

from hvdtrain.collectives import ring_rendezvous
from hvdtrain.collectives.encoding import decode
from hvdtrain.collectives.ring import RingGroup
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.jobs import agents, gloo, protocol
from hvdtrain.jobs.agents import AgentServer
from hvdtrain.jobs.gloo import Store
from hvdtrain.jobs.protocol import OutputOf
from hvdtrain.system import agent_pipe, handshake, rank_info
from hvdtrain.system.credentials import proof
from hvdtrain.system.network import free_port

REQUEST = b"GET /global/0 HTTP/1.1\r\nHost: x\r\n\r\n"
EACH_KIND = pytest.mark.parametrize("sent", SENT.values(), ids=SENT)


def agent(port: int) -> str:
    """Connect as an agent does; what the server then sends."""
    channel = protocol.open_channel(socket.create_connection(("127.0.0.1", port), 60), PASSWORD)
    return channel.receive().key


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(protocol.encode(OutputOf("welcome")))
    await reader.read()


def serving(check):
    """Run `check(server)`, a coroutine, with the launcher's server."""

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: pytest.fail(str(context)))
        server = AgentServer("127.0.0.1", PASSWORD, 1, served)
        await check(server)
        server.close()

    asyncio.run(run())


@pytest.mark.guarantee("strangers")
@EACH_KIND
def test_strangers_keep_no_agent_out(sent):
    """More than are kept: the oldest are closed."""
    kept = agents.MAX_STRANGERS

    async def check(server) -> None:
        with contextlib.ExitStack() as stack:
            many = strangers(("127.0.0.1", server.port), 3 * kept, sent)
            made = await asyncio.to_thread(stack.enter_context, many)
            assert await asyncio.to_thread(agent, server.port) == "welcome"
            enough = lambda: sum(map(is_closed, made)) >= 2 * kept - 1  # noqa: E731
            await asyncio.to_thread(wait_for, enough, agents.PROOF_S / 2)
            assert all(map(is_closed, made[:kept]))

    serving(check)


def test_a_stranger_has_little_time(monkeypatch):
    monkeypatch.setattr(agents, "PROOF_S", 0.1)

    async def check(server) -> None:
        with strangers(("127.0.0.1", server.port), 2, b"{") as made:
            await asyncio.to_thread(wait_for, lambda: all(map(is_closed, made)), 30)

    serving(check)


def test_an_agent_gets_in_when_file_descriptors_are_free_again(monkeypatch):
    """Until then the server does not turn in circles, and says nothing."""
    accept, errors = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 2

    def fail_at_first(own):
        if errors:
            raise errors.pop()
        return accept(own)

    monkeypatch.setattr(socket.socket, "accept", fail_at_first)

    async def check(server) -> None:
        assert await asyncio.to_thread(agent, server.port) == "welcome"
        assert not errors

    serving(check)


def test_a_ring_without_file_descriptors_says_so_at_once(monkeypatch):
    def fail(own):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", fail)
    address = ("127.0.0.1", free_port())
    with socket.socket() as caller, contextlib.ExitStack() as stack:
        connects = threading.Thread(target=lambda: wait_for(lambda: caller.connect_ex(address) == 0, 10))
        connects.start()
        stack.callback(connects.join)
        with pytest.raises(TrainingError, match="Too many open files"):
            RingGroup(rank_info.RankInfo("test", 0, 2, 0), address, PASSWORD, start_timeout_s=5)


@contextlib.contextmanager
def impostor():
    """The address of a server that answers each challenge with a proof of another token."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller:
                        caller.sendall(b"x" * handshake.CHALLENGE_BYTES)
                        theirs = handshake.receive(caller, handshake.CHALLENGE_BYTES + handshake.PROOF_BYTES)
                        challenge = theirs[: handshake.CHALLENGE_BYTES].hex()
                        caller.sendall(proof("another token", challenge, f"listener {protocol.PURPOSE}").encode())

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()


def test_an_agent_rejects_a_supervisor_without_the_token(monkeypatch):
    """Each side must prove that it knows the token, and one side's proof is not valid for the other."""
    assert proof("a", "challenge", "caller") != proof("a", "challenge", "listener")
    assert proof("a", "challenge", "caller") != proof("b", "challenge", "caller")
    with impostor() as address:
        monkeypatch.setenv(agent_pipe.SUPERVISOR, f"127.0.0.1:{address[1]}")
        with pytest.raises(UserError, match="cannot be reached"):
            protocol.connect("the token", 0.3)


VERSIONS_FIRST = """
import os
from hvdtrain.jobs import agent, protocol
from hvdtrain.system import agent_pipe
os.environ.update({agent_pipe.SUPERVISOR: "127.0.0.1:1", "HVDTRAIN_LAUNCHER": "mpirun"})
agent.stacks.versions_here = lambda: print("versions") or {}
protocol.connect = lambda *_: print("connect") or exit(0)
agent.main(["--", "true"])
"""


def test_an_agent_reads_its_versions_before_it_connects():
    """That may take longer than the supervisor waits for a greeting: a slow shared folder holds the packages.

    Needs a process, whose signals and orphans an agent takes over.
    """
    done = subprocess.run([sys.executable, "-c", VERSIONS_FIRST], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["versions", "connect"], done.stderr


def test_all_ranks_may_ask_gloo_s_server_at_the_same_time():
    """All connections are opened before the first request is sent; none may be lost."""
    store = Store("127.0.0.1")
    clients = [socket.create_connection(("127.0.0.1", store.port), timeout=20) for _ in range(256)]
    for client in clients:
        client.sendall(REQUEST)
    for client in clients:
        with client:
            assert client.recv(100).startswith(b"HTTP/1.0 404")


@pytest.mark.guarantee("strangers")
@EACH_KIND
def test_strangers_keep_no_rank_out(sent):
    store = Store("127.0.0.1")
    with strangers(("127.0.0.1", store.port), gloo.MAX_CONNECTIONS + 20, sent) as made:
        with socket.create_connection(("127.0.0.1", store.port), timeout=20) as client:
            client.sendall(REQUEST)
            assert client.recv(100).startswith(b"HTTP/1.0 404")
        wait_for(lambda: all(map(is_closed, made[:20])), 5)


def test_the_port_of_an_ended_job_can_be_opened_at_once():
    """The server has closed a connection, which stays in TIME_WAIT for a minute."""
    store = Store("127.0.0.1")
    with socket.create_connection(("127.0.0.1", store.port), timeout=20) as client:
        client.sendall(REQUEST)
        while client.recv(100):
            pass
    store._server.shutdown()
    store._thread.join()
    assert Store("127.0.0.1", store.port).port == store.port


def test_gloo_s_server_listens_on_one_address_and_rejects_large_values():
    store = Store("127.0.0.1")
    with socket.create_connection(("127.0.0.1", store.port), 5) as caller:
        caller.sendall(b"PUT /scope/key HTTP/1.0\r\nContent-Length: 1000000000000\r\n\r\n")
        assert b" 400 " in caller.makefile("rb").readline()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", store.port), 5).close()


def test_a_pickle_is_not_a_value_that_ranks_send(tmp_path):
    with pytest.raises(TrainingError, match="sent what ranks never send"):
        decode(pickle.dumps(Harm(tmp_path / "harm")))
    assert not (tmp_path / "harm").exists()


@pytest.mark.matrix
def test_servers_of_mxnet_unpickle_nothing(tmp_path):
    """As a command with an optimizer, which any caller can send to their port. The pickle would run in this process."""
    from hvdtrain.frameworks.mxnet.strategies import SERVER

    command = pickle.dumps(Harm(tmp_path / "harm"))
    receive = f"from mxnet.kvstore.kvstore_server import KVStoreServer as S\nclass Store: handle = rank = 0\n\
S(Store())._controller()(0, {command!r}, None)"
    done = subprocess.run([sys.executable, "-c", SERVER + receive], capture_output=True, text=True)
    assert "a command holds a pickle, which workers of hvdtrain never send" in done.stderr
    assert not (tmp_path / "harm").exists()


class Ring:
    """Two ranks in threads, each of which connects to an address and adds 1 to a sum."""

    def __init__(self) -> None:
        self.sums: list[float] = []
        self._threads: list[threading.Thread] = []

    def start(self, number: int, address: tuple[str, int]) -> threading.Thread:
        def rank() -> None:
            ring = RingGroup(rank_info.RankInfo("test", number, 2, number), address, PASSWORD, start_timeout_s=20)
            self.sums.append(float(ring.sum(np.ones(1))[0]))
            ring.close()

        self._threads.append(threading.Thread(target=rank))
        self._threads[-1].start()
        return self._threads[-1]

    def check(self) -> None:
        for thread in self._threads:
            thread.join(30)
        assert self.sums == [2, 2]


@pytest.fixture
def ring():
    return Ring()


def test_a_man_in_the_middle_does_not_learn_the_token(ring):
    """A process between the ranks, which forwards everything, sees only challenges and responses."""
    inside, outside = ("127.0.0.1", free_port()), socket.create_server(("127.0.0.1", 0))
    seen = bytearray()

    def forward_connections():
        caller, _ = outside.accept()
        host = socket.socket()
        wait_for(lambda: host.connect_ex(inside) == 0, 10)
        for source, sink in ((host, caller), (caller, host)):
            threading.Thread(target=forward, args=(source, sink), daemon=True).start()

    def forward(source, sink):
        while data := source.recv(1 << 16):
            seen.extend(data)
            sink.sendall(data)

    threading.Thread(target=forward_connections, daemon=True).start()
    ring.start(0, inside)
    ring.start(1, outside.getsockname())
    ring.check()
    assert len(seen) > 100 and PASSWORD.encode() not in seen


def test_an_impostor_as_rank_0_is_rejected():
    with impostor() as address, pytest.raises(TrainingError, match="does not know this job's token"):
        RingGroup(rank_info.RankInfo("test", 1, 2, 1), address, PASSWORD, start_timeout_s=5)


@pytest.mark.guarantee("strangers")
@pytest.mark.parametrize("sent", [[b""], [*SENT.values()]], ids=["idle", "of all kinds"])
def test_strangers_do_not_delay_the_ranks(monkeypatch, ring, sent):
    """More than are kept, at the rendezvous before rank 1 connects; none is closed for its silence."""
    monkeypatch.setattr(ring_rendezvous, "PROOF_S", 60)
    address = ("127.0.0.1", free_port())
    ring.start(0, address)
    with socket.socket() as first:
        wait_for(lambda: first.connect_ex(address) == 0, 10)  # once rank 0 listens
        with strangers(address, 2 * ring_rendezvous.MAX_STRANGERS, sent):
            ring.start(1, address)
            ring.check()
