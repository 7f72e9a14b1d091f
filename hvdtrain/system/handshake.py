"""Two processes of a job prove to each other over a new connection that they know its token, which is never sent.

The listener sends a challenge; the caller answers it by HMAC, with a challenge of its own; the listener answers that.

A connection without a proof is a stranger's. Strangers are limited in number and in time, and a process without a free
file descriptor gives up strangers first, so that idle or half-open connections keep no rank out.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from hvdtrain.system.credentials import proof

CHALLENGE_BYTES, PROOF_BYTES = 32, 64
PAUSE_S = 0.02
"""After a connection for which there was no file descriptor."""


def introduce(link: socket.socket, token: str, purpose: str, is_over: Callable[[], bool] = lambda: True) -> None:
    """The caller's side. Raises OSError where the other side does not know the token, or does not answer.

    purpose: of the connection, the same on both sides. is_over: asked after each timeout of the connection.
    """
    challenge = secrets.token_hex(CHALLENGE_BYTES // 2)
    answer = proof(token, receive(link, CHALLENGE_BYTES, is_over).hex(), f"caller {purpose}")
    link.sendall(f"{challenge}{answer}".encode())
    if not _is_proof(receive(link, PROOF_BYTES, is_over), token, challenge.encode(), f"listener {purpose}"):
        raise OSError("the process that listens there does not know this job's token")


def receive(link: socket.socket, size: int, is_over: Callable[[], bool] = lambda: True) -> bytes:
    """So many bytes, and not one more. Raises OSError where they do not come."""
    received = b""
    while len(received) < size:
        try:
            part = link.recv(size - len(received))
        except TimeoutError:
            if is_over():
                raise
            continue
        if not part:
            raise OSError("the other side closed the connection")
        received += part
    return received


def _is_proof(given: bytes, token: str, challenge: bytes, role: str) -> bool:
    return hmac.compare_digest(given, proof(token, challenge.hex(), role).encode())


class Stranger(NamedTuple):
    """What a listener knows of a connection without a proof."""

    challenge: bytes
    received: bytearray
    until: float
    """When it is closed: monotonic, in s."""


class Callers:
    """The connections to a listening socket.

    count: strangers at a time; of more, the oldest are closed. seconds: how long each may take for its proof.
    """

    def __init__(self, listener: socket.socket, token: str, purpose: str, count: int, seconds: float) -> None:
        listener.setblocking(False)
        self._listener, self._token, self._purpose = listener, token, purpose
        self._count, self._seconds = count, seconds
        self._strangers: dict[socket.socket, Stranger] = {}
        """In the order in which they came."""
        self.hindrance: OSError | None = None
        """Why the newest connection is not accepted, where there is no stranger that could be given up for it."""
        self._selector = selectors.EpollSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Is readable when `take` has something to do."""
        return self._selector.fileno()

    def take(self, wait_s: float = 0.0) -> list[socket.socket]:
        """The connections whose other side has proven itself since the last call; waits so long for any event."""
        proven = []
        for key, _ in self._selector.select(wait_s):
            link = key.fileobj
            if link is self._listener:
                self._accept()
            elif isinstance(link, socket.socket) and link in self._strangers and self._proves(link):
                self._forget(link)
                link.setblocking(True)
                proven.append(link)
        now = time.monotonic()
        for link in [link for link, stranger in self._strangers.items() if stranger.until < now]:
            self._forget(link).close()
        return proven

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
            link.setblocking(False)
            self._selector.register(link, selectors.EVENT_READ)
            challenge, until = secrets.token_bytes(CHALLENGE_BYTES), time.monotonic() + self._seconds
            self._strangers[link] = Stranger(challenge, bytearray(), until)
            link.send(challenge)
        except (BlockingIOError, ConnectionError):  # it has left again
            return
        except OSError as error:  # no file descriptor, or no memory
            self.hindrance = None if self._strangers else error
            self._close_oldest()
            time.sleep(PAUSE_S)
        if len(self._strangers) > self._count:
            self._close_oldest()

    def _proves(self, link: socket.socket) -> bool:
        """Whether a stranger's proof is complete now; a stranger that has sent something else is closed."""
        challenge, received, _ = self._strangers[link]
        try:
            part = link.recv(CHALLENGE_BYTES + PROOF_BYTES - len(received))
            received += part
            if part and len(received) < CHALLENGE_BYTES + PROOF_BYTES:
                return False
            theirs, answer = received[:CHALLENGE_BYTES], bytes(received[CHALLENGE_BYTES:])
            if _is_proof(answer, self._token, challenge, f"caller {self._purpose}"):
                link.sendall(proof(self._token, theirs.hex(), f"listener {self._purpose}").encode())
                return True
        except BlockingIOError:
            return False
        except OSError:  # it has left again
            pass
        self._forget(link).close()
        return False

    def _close_oldest(self) -> None:
        if self._strangers:
            self._forget(next(iter(self._strangers))).close()

    def _forget(self, link: socket.socket) -> socket.socket:
        del self._strangers[link]
        self._selector.unregister(link)
        return link

    def close(self) -> None:
        """Close the port and all strangers."""
        for link in [*self._strangers]:
            self._forget(link).close()
        self._selector.close()
        self._listener.close()
