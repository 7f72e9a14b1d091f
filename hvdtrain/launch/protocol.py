"""How a supervisor and its ranks' keepers talk: lines of JSON over TCP, after each has proven that it knows the job's
token. The token itself never crosses the network: whoever may tell a rank its environment may run what he likes there.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import time
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.system.proof import proof

SUPERVISOR = "HVDTRAIN_SUPERVISOR"
"""Environment variable: addresses,port of the supervisor, as in 10.0.0.1,192.168.0.1:4711."""
LINE_BYTES = 1 << 20
ANSWER_S = 5.0
UNHEARD_S = 1.0
"""A host that acknowledges nothing for so long is not waited for when its job ends."""
Message = dict[str, Any]


def encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """A message that arrived. Raises ValueError where it is none."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("a message nested too deep") from None
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def text(data: bytes) -> str:
    """Bytes of any kind as text that JSON carries, and `data` turns back."""
    return data.decode("utf-8", "surrogateescape")


def data(told: str) -> bytes:
    return told.encode("utf-8", "surrogateescape")


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within 15 s that the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    give_up_after(connection, 14)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def give_up_after(connection: socket.socket, seconds: float) -> None:
    """Have the kernel close a connection on which the other host acknowledges nothing for so long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


class Closed(Exception):
    """The other end is gone."""


class Channel:
    """A keeper's end. Raises Closed where the supervisor is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    @property
    def own_address(self) -> str:
        return str(self._connection.getsockname()[0])

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, **message: Any) -> None:
        try:
            self._connection.sendall(encode(message))
        except OSError:
            raise Closed from None

    def receive(self) -> Message:
        """The next message; waits for it."""
        while b"\n" not in self._rest:
            self._rest += self._read()
        line, _, self._rest = self._rest.partition(b"\n")
        return self._decoded(line)

    def arrived(self) -> list[Message]:
        """Messages of what lies there to be read, maybe none."""
        self._rest += self._read()
        *lines, self._rest = self._rest.split(b"\n")
        return [self._decoded(line) for line in lines]

    @staticmethod
    def _decoded(line: bytes) -> Message:
        try:
            return decode(line)
        except ValueError:  # no supervisor of ours
            raise Closed from None

    def _read(self) -> bytes:
        try:
            arrived = self._connection.recv(1 << 16)
        except OSError:
            raise Closed from None
        if not arrived or len(self._rest) > LINE_BYTES:
            raise Closed
        return arrived

    def close(self) -> None:
        """Wait until the supervisor has read all."""
        try:
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(ANSWER_S)
            while self._connection.recv(1 << 16):
                pass
        except OSError:
            pass
        self._connection.close()


def connect(token: str, timeout_s: float) -> Channel:
    """Find the supervisor at one of its addresses, and have it prove itself.

    Raises UserError where none of them leads to it.
    """
    addresses, _, port = os.environ[SUPERVISOR].rpartition(":")
    deadline, reasons = time.monotonic() + timeout_s, {}
    while time.monotonic() < deadline:
        for address in addresses.split(","):
            try:
                connection = socket.create_connection((address, int(port)), ANSWER_S)
                return _proven(connection, token)
            except (OSError, ValueError, KeyError, Closed) as error:
                reasons[address] = str(error) or "it does not know this job"
        time.sleep(0.2)
    tried = "; ".join(f"{address}:{port}: {reason}" for address, reason in reasons.items())
    raise UserError(
        f"the launcher cannot be reached ({tried}): open its host's firewall for TCP from here, "
        "or give the interface between the hosts by --interface"
    )


def _proven(connection: socket.socket, token: str) -> Channel:
    try:
        channel, challenge = Channel(connection), secrets.token_hex(16)
        channel.send(challenge=challenge)
        answer = channel.receive()
        if not hmac.compare_digest(data(str(answer["proof"])), data(proof(token, challenge, "supervisor"))):
            raise Closed
        channel.send(proof=proof(token, str(answer["challenge"]), "rank"))
        connection.settimeout(None)
        keep_alive(connection)
        return channel
    except BaseException:
        connection.close()
        raise
