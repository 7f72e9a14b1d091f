"""The protocol between the supervisor and the ranks' agents: lines of JSON over TCP, after mutual authentication.

Each side proves that it knows the job's token, which itself never crosses the network: whoever could send a rank its
environment could run any code there.

What a program prints is at most UNREAD_BYTES ahead of the supervisor. The rest waits in the pipes, and the program with
it, until the supervisor has acknowledged some of them. So a slow console slows the program down instead of filling the
launcher's memory. And for a launcher that is suspended, the kernel of its host has space for all that was sent, and
acknowledges it: only a host that is lost leaves data without an acknowledgment by TCP (`keep_alive`).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import time
from typing import IO, Any

from hvdtrain.errors import UserError
from hvdtrain.system.credentials import proof
from hvdtrain.system.network import NOTICE_S, notice_lost_hosts
from hvdtrain.system.processes import RunningLimit

SUPERVISOR = "HVDTRAIN_SUPERVISOR"
"""Environment variable: the supervisor's addresses and port, as in 10.0.0.1,192.168.0.1:4711."""
LINE_BYTES = 1 << 20
"""The longest message."""
ANSWER_TIMEOUT_S = 5.0
REFUSED_S = 2.0
"""The supervisor listens before it starts agents: if its port refuses connections for so long, it has ended."""
UNREACHABLE_AFTER_S = 1.0
"""When a job ends, a host that acknowledges nothing for this long is not waited for."""
SURVIVING_NOTICE_S = 5
"""In a job that survives lost ranks: how long after its last packet a host counts as lost."""
Message = dict[str, Any]


def encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """A message that was received. Raises ValueError if the line is not a message."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def to_text(data: bytes) -> str:
    """Any bytes as text that JSON can hold; `to_bytes` is the reverse."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def notice_s(survives: bool) -> int:
    """Seconds after which a host that cannot be reached counts as lost. survives: whether the job goes on then."""
    return SURVIVING_NOTICE_S if survives else NOTICE_S


def keep_alive(connection: socket.socket, seconds: int) -> None:
    """Have the kernel close the connection within that time after the other host has become unreachable.

    It would also close one whose other end does not read and has no more space for what is sent; agents send less.
    """
    notice_lost_hosts(connection, seconds)
    close_if_unacknowledged(connection, seconds - 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def close_if_unacknowledged(connection: socket.socket, seconds: float) -> None:
    """Have the kernel close the connection when the other host acknowledges nothing for that long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


class Closed(Exception):
    """The other side has closed the connection, or does not follow the protocol."""


class Channel:
    """An agent's side of the connection. Its methods raise Closed where the supervisor has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    @property
    def local_address(self) -> str:
        return str(self._connection.getsockname()[0])

    @property
    def supervisor_address(self) -> str:
        """Where this host reaches the supervisor's."""
        return str(self._connection.getpeername()[0])

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, **message: Any) -> int:
        """The size of the message in bytes, as the supervisor counts it."""
        line = encode(message)
        try:
            self._connection.sendall(line)
        except OSError:
            raise Closed from None
        return len(line)

    def receive(self) -> Message:
        """Wait for the next message."""
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
            received = self._connection.recv(1 << 16)
        except OSError:
            raise Closed from None
        if not received or len(self._rest) > LINE_BYTES:
            raise Closed
        return received

    def close(self) -> None:
        """Wait until the supervisor has read everything."""
        try:
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(ANSWER_TIMEOUT_S)
            while self._connection.recv(1 << 16):
                pass
        except OSError:
            pass
        self._connection.close()


def connect(token: str, timeout_s: float, survives: bool = False) -> Channel:
    """Connect to the supervisor at one of its addresses, and authenticate both sides.

    survives: whether the job goes on without this rank. Raises UserError if none of the addresses leads to it within
    timeout_s seconds.
    """
    addresses, _, port = os.environ[SUPERVISOR].rpartition(":")
    errors = dict[str, Exception]()
    with RunningLimit(timeout_s) as limit:  # a job may be suspended for longer
        while not limit.is_over:
            for address in addresses.split(","):
                try:
                    connection = socket.create_connection((address, int(port)), ANSWER_TIMEOUT_S)
                    return authenticate(connection, token, survives)
                except (OSError, ValueError, KeyError, Closed) as error:
                    errors[address] = error
            refused = all(isinstance(error, ConnectionRefusedError) for error in errors.values())
            if refused and limit.passed_s > REFUSED_S:
                break
            time.sleep(0.2)
    tried = "; ".join(f"{address}:{port}: {error or 'it does not know this job'}" for address, error in errors.items())
    raise UserError(
        f"the launcher cannot be reached ({tried})",
        "open its host's firewall for TCP from here, or name the interface between the hosts with --interface",
    )


def authenticate(connection: socket.socket, token: str, survives: bool = False) -> Channel:
    """A channel over a new connection, after both sides have proven that they know the token.

    Raises Closed, OSError, ValueError or KeyError where the other side does not; the connection is closed then.
    """
    try:
        channel, challenge = Channel(connection), secrets.token_hex(16)
        channel.send(challenge=challenge)
        answer = channel.receive()
        if not hmac.compare_digest(to_bytes(str(answer["proof"])), to_bytes(proof(token, challenge, "supervisor"))):
            raise Closed
        channel.send(proof=proof(token, str(answer["challenge"]), "rank"))
        connection.settimeout(None)
        keep_alive(connection, notice_s(survives))
        return channel
    except BaseException:
        connection.close()
        raise


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
                self._unread += self._channel.send(**{name: to_text(data)})
        self._update()

    def on_read(self, count: int) -> None:
        """The supervisor has read as many bytes."""
        self._unread -= count
        self._update()

    def on_program_end(self, status: int) -> None:
        """Report the end at once: a process that the program left behind may hold its output open.

        What the pipes still hold is not to wait for the console: it may say why the program failed.
        """
        if self._channel:
            with contextlib.suppress(Closed):
                self._channel.send(program_ended=status)

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
