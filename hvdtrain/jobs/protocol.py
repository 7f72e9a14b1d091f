"""The protocol between the supervisor and the ranks' agents: lines of JSON over TCP, after mutual authentication.

Each side proves that it knows the job's token, which itself never crosses the network: whoever could send a rank its
environment could run any code there.

What a program prints has a connection of its own (`ProgramOutput`), which the supervisor reads no faster than it is
shown: TCP holds up the agent then, and the full pipes hold up the program. The connection for messages is always read.
So for a launcher that is suspended, the kernel of its host has space for all messages, and acknowledges them: only a
host that is lost leaves data without an acknowledgment by TCP (`keep_alive`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Union, cast

import msgspec

from hvdtrain.errors import UserError
from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import Report
from hvdtrain.system.handshake import introduce
from hvdtrain.system.membership import Membership
from hvdtrain.system.network import NOTICE_S, notice_lost_hosts
from hvdtrain.system.processes import RunningLimit

PURPOSE = "launcher"
"""Of the connections, in the proofs of both sides."""
LINE_BYTES = 1 << 20
ANSWER_TIMEOUT_S = 5.0
REFUSED_S = 2.0
"""The supervisor listens before it starts agents: if its port refuses connections for so long, it has ended."""
UNREACHABLE_AFTER_S = 1.0
"""When a job ends, a host that acknowledges nothing for this long is not waited for."""
SURVIVING_NOTICE_S = 5
"""In a job that survives lost ranks: how long after its last packet a host counts as lost."""


class Message(msgspec.Struct, tag=True, tag_field="message"):
    """Base of all messages."""


class Hello(Message):
    """A rank registers. place: of the agent's process, see `ProcessIdentity`. address: where other ranks reach it.

    port: of the ranks' rendezvous, where it has reserved one. store: of Gloo's rendezvous server, where it runs one.
    key: by which it says on another connection that it is the same agent.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    place: str
    address: str = ""
    port: int = 0
    store: int = 0
    versions: dict[str, str] = {}
    key: str = ""


class OutputOf(Message):
    """The first message on the connection for an agent's output; it is answered by itself."""

    key: str


class StartProgram(Message):
    """The agent is to start its program. store: Gloo's rendezvous server, if all memberships share one."""

    environment: dict[str, str]
    store: tuple[str, int] = ("", 0)
    local_size: int = 0
    """The ranks on its host; 0 where the launcher's variables tell it."""


class Signal(Message):
    """A signal for the program; from an agent, one that it got from the launcher, such as srun's tasks by scancel."""

    number: int


class NewMembership(Message):
    """A membership for the program."""

    membership: Membership


class Said(Message):
    """What the program says about itself, see `agent_pipe`."""

    said: dict[str, Any]


class Ended(Message):
    """The program has ended, with this status as Popen has it; its output may still arrive."""

    status: int


class End(Message):
    """The agent is to end its program, and then itself."""

    at_once: bool = False


ANY: Any = Union[tuple(Message.__subclasses__())]  # noqa: UP007  (of a list)


def encode(message: object) -> bytes:
    return json.dumps(msgspec.to_builtins(message, str_keys=True)).encode() + b"\n"


def decode(line: bytes) -> Message:
    """A message that was received. Raises ValueError if the line is not a message."""
    try:  # by json, as texts may have bytes that are not UTF-8
        return cast("Message", msgspec.convert(json.loads(line), ANY, str_keys=True))
    except (RecursionError, msgspec.ValidationError) as error:
        raise ValueError(f"not a message ({type(error).__name__})") from None


def parse(message: Mapping[str, Any]) -> Report | None:
    """What a message of `agent_pipe` says; None for one of another form, as whoever has the pipe can write to it."""
    (kind, values), *_ = message.items() or [("", {})]
    with contextlib.suppress(KeyError, msgspec.ValidationError):
        return cast("Report", msgspec.convert(values, agent_pipe.KINDS[kind]))
    return None


def keep_alive(connection: socket.socket, survives: bool) -> None:
    """Have the kernel close the connection soon after the other host has become unreachable.

    It would also close one whose other end does not read and has no more space for what is sent. survives: whether the
    job goes on without a lost host.
    """
    seconds = SURVIVING_NOTICE_S if survives else NOTICE_S
    notice_lost_hosts(connection, seconds)
    close_if_unacknowledged(connection, seconds - 1)


def close_if_unacknowledged(connection: socket.socket, seconds: float) -> None:
    """Have the kernel close the connection when the other host acknowledges nothing for that long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


class Closed(Exception):
    """The other side has closed the connection, or does not follow the protocol."""


class Channel:
    """An agent's side of a connection. Its methods raise Closed where the supervisor has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    @property
    def supervisor_address(self) -> str:
        """Where this host reaches the supervisor's."""
        return str(self.connection.getpeername()[0])

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Message) -> None:
        try:
            self.connection.sendall(encode(message))
        except OSError:
            raise Closed from None

    def receive(self) -> Message:
        while b"\n" not in self._rest:
            self._rest += self._read()
        line, _, self._rest = self._rest.partition(b"\n")
        return self._decoded(line)

    def receive_available(self) -> list[Message]:
        """Messages that have arrived completely, perhaps none; call it when the channel is readable."""
        self._rest += self._read()
        *lines, self._rest = self._rest.split(b"\n")
        return [self._decoded(line) for line in lines]

    @staticmethod
    def _decoded(line: bytes) -> Message:
        try:
            return decode(line)
        except ValueError:  # not a supervisor of ours
            raise Closed from None

    def _read(self) -> bytes:
        try:
            received = self.connection.recv(1 << 16)
        except OSError:
            raise Closed from None
        if not received or len(self._rest) > LINE_BYTES:
            raise Closed
        return received

    def close(self) -> None:
        """Wait until the supervisor has read everything."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(ANSWER_TIMEOUT_S)
            while self.connection.recv(1 << 16):
                pass
        except OSError:
            pass
        self.connection.close()


def connect(token: str, timeout_s: float, first: str = "") -> Channel:
    """Connect to the supervisor at one of its addresses, and authenticate both sides.

    first: the address to try first, as one before it may drop all packets.
    Raises UserError if none of the addresses leads to it within timeout_s seconds.
    """
    addresses, _, port = os.environ[agent_pipe.SUPERVISOR].rpartition(":")
    errors = dict[str, Exception]()
    with RunningLimit(timeout_s) as limit:  # a job may be suspended for longer
        while not limit.is_over:
            for address in sorted(addresses.split(","), key=lambda address: address != first):
                try:
                    connection = socket.create_connection((address, int(port)), ANSWER_TIMEOUT_S)
                    return open_channel(connection, token)
                except OSError as error:
                    errors[address] = error
            refused = all(isinstance(error, ConnectionRefusedError) for error in errors.values())
            if refused and limit.passed_s > REFUSED_S:
                break
            time.sleep(0.2)
    tried = "; ".join(f"{address}:{port}: {error}" for address, error in errors.items())
    raise UserError(
        f"the launcher cannot be reached ({tried})",
        "open its host's firewall for TCP from here, or name the interface between the hosts with --interface",
    )


def open_channel(connection: socket.socket, token: str) -> Channel:
    """A channel over a new connection, after both sides have proven that they know the token.

    Raises OSError where the other side does not; the connection is closed then.
    """
    try:
        introduce(connection, token, PURPOSE)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_lost_hosts(connection)  # also so that no firewall forgets one on which nothing is sent for long
        return Channel(connection)
    except BaseException:
        connection.close()
        raise


STREAMS = ("stdout", "stderr")
FRAME = struct.Struct(">BI")
"""Before each part of what a program prints: which of STREAMS, and how many bytes follow."""
