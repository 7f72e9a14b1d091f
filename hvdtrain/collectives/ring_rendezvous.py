"""How the ranks of a ring find each other, and reject callers that do not know the job's token.

Rank 0 listens at the rendezvous address. Every other rank connects to it, and both prove that they know the token,
which is never sent itself. Rank 0 then sends the addresses of all ranks and a nonce, and each rank connects to the next
one with a proof made from token and nonce. The nonce is new in each ring, so a proof recorded earlier is worthless.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import time
from multiprocessing.connection import wait
from typing import Any, Literal, NamedTuple

from hvdtrain.errors import TrainingError
from hvdtrain.system.credentials import proof
from hvdtrain.system.network import notice_lost_hosts
from hvdtrain.system.processes import TICK_S, RunningLimit
from hvdtrain.system.rank_info import TOKEN_FILE, RankInfo

HELLO_TIMEOUT_S = 5
"""Time within which a caller must identify itself."""
MAX_STRANGERS = 64
"""Callers that have not identified themselves, beyond one for each rank: of more, the oldest are closed."""
MAX_HELLO_BYTES = 1 << 10
MAX_LINE_BYTES = 1 << 16
INVALID_LINE = (ValueError, KeyError, TypeError, RecursionError)
"""Errors from reading an unknown caller's line: not JSON, not the expected values, or nested too deeply."""

Purpose = Literal["rendezvous", "ring"]


class Peers(NamedTuple):
    """What rank 0 sends to all ranks."""

    addresses: list[tuple[str, int]]
    """Where each rank listens for the previous one."""
    nonce: str
    """A random text from which neighbors make their proofs."""


def connect_neighbors(
    rank: RankInfo, address: tuple[str, int], token: str, limit: RunningLimit
) -> tuple[socket.socket, socket.socket]:
    """Non-blocking connections to the next rank and from the previous one.

    address: where rank 0 listens. limit: for all of it. Raises TrainingError if the ring is not complete by then: the
    next attempt of --restarts has another port, and perhaps other hosts.
    """
    try:
        peers, listener = (_serve if rank.rank == 0 else _join)(rank, address, token, limit)
        next_rank = (rank.rank + 1) % rank.size
        following = _connect(peers.addresses[next_rank], limit)
        _send_line(following, _hello(token, peers.nonce, "ring", rank.rank))
        previous_rank = (rank.rank - 1) % rank.size
        previous, _ = _accept(listener, token, peers.nonce, limit, {previous_rank})[previous_rank]
        listener.close()
    except (OSError, *INVALID_LINE) as error:
        raise TrainingError(
            f"rank {rank.rank} cannot join the ring of {rank.size} at {address[0]}:{address[1]} ({error})",
            "check that all ranks were started and can reach that address",
            rank=rank.rank,
        ) from None
    for link in (following, previous):
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_lost_hosts(link)
    return following, previous


def _serve(rank: RankInfo, address: tuple[str, int], token: str, limit: RunningLimit) -> tuple[Peers, socket.socket]:
    """Rank 0's part: accept all other ranks, and send them the addresses. Also returns rank 0's own listener."""
    with contextlib.ExitStack() as connections:
        server = connections.enter_context(socket.create_server(address, backlog=rank.size + MAX_STRANGERS))
        listener = socket.create_server((server.getsockname()[0], 0))
        accepted = _accept(server, token, "", limit, set(range(1, rank.size)))
        callers = [(connections.enter_context(link), hello) for _, (link, hello) in sorted(accepted.items())]
        others = [(caller.getpeername()[0], hello["port"]) for caller, hello in callers]
        peers = Peers([listener.getsockname()[:2], *others], secrets.token_hex(16))
        for caller, hello in callers:
            proof_of_rank_0 = proof(token, hello["challenge"], "rank 0")
            _send_line(caller, {"proof": proof_of_rank_0, **peers._asdict()})
    return peers, listener


def _join(rank: RankInfo, address: tuple[str, int], token: str, limit: RunningLimit) -> tuple[Peers, socket.socket]:
    """The part of ranks 1 and above: connect to rank 0. Also returns this rank's listener."""
    with _connect(address, limit) as server:
        # On the interface that reaches rank 0: the port is not open on other networks.
        listener = socket.create_server((server.getsockname()[0], 0))
        challenge = secrets.token_hex(16)
        hello = _hello(token, str(_read_line(server, limit)), "rendezvous", rank.rank)
        _send_line(server, {**hello, "port": listener.getsockname()[1], "challenge": challenge})
        answer = _read_line(server, limit)
        if not hmac.compare_digest(answer["proof"], proof(token, challenge, "rank 0")):
            raise OSError(f"the process that listens there does not know this job's token; see {TOKEN_FILE}")
        return Peers([(host, port) for host, port in answer["addresses"]], answer["nonce"]), listener


def _hello(token: str, challenge: str, purpose: Purpose, rank: int) -> dict[str, Any]:
    """The caller's rank and its proof, which names the purpose so that a false rank 0 cannot reuse it at a neighbor."""
    return {"rank": rank, "proof": proof(token, challenge, f"{purpose} rank {rank}")}


class _Caller:
    """A connection whose other side has not proven that it is a rank of this job."""

    def __init__(self, link: socket.socket, nonce: str) -> None:
        self.link, self._challenge = link, nonce or secrets.token_hex(16)
        self.deadline, self._line = time.monotonic() + HELLO_TIMEOUT_S, b""
        link.setblocking(False)
        if not nonce:
            _send_line(link, self._challenge)

    def read_hello(self) -> dict[str, Any] | None:
        """What it says about itself; None until that is complete. Raises OSError or INVALID_LINE for a stranger."""
        try:
            while not self._line.endswith(b"\n"):  # byte by byte, so that nothing after the line is consumed
                byte = self.link.recv(1)
                if not byte or len(self._line) >= MAX_HELLO_BYTES:
                    raise OSError("no hello")
                self._line += byte
        except BlockingIOError:
            return None
        return dict(json.loads(self._line))

    def proves(self, hello: dict[str, Any], token: str, purpose: Purpose) -> bool:
        valid = _hello(token, self._challenge, purpose, hello["rank"])
        return hmac.compare_digest(hello["proof"], valid["proof"])


def _accept(
    listener: socket.socket, token: str, nonce: str, limit: RunningLimit, ranks: set[int]
) -> dict[int, tuple[socket.socket, dict[str, Any]]]:
    """Connections from these ranks of this job, and their hellos.

    Other callers are disconnected after HELLO_TIMEOUT_S; they do not delay the ranks, as all are read at the same time.
    nonce: the ring's, for neighbors; empty at the rendezvous, where each caller is sent its own challenge. Raises
    OSError where a rank did not connect within the limit.
    """
    accepted: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
    callers: dict[socket.socket, _Caller] = {}
    listener.setblocking(False)
    try:
        while missing := ranks - accepted.keys():
            if limit.is_over:
                raise OSError(f"rank {', '.join(map(str, sorted(missing)))} did not connect")
            links = [listener, *callers]
            ready = wait(links, min(limit.left_s, TICK_S))
            for link in (link for link in links if link in ready):
                if link is listener:
                    _greet(listener, nonce, callers, len(ranks) + MAX_STRANGERS)
                elif hello := _identified(callers, link, token, "ring" if nonce else "rendezvous", missing):
                    link.settimeout(limit.left_s)
                    accepted[hello["rank"]] = link, hello
            for caller in [caller for caller in callers.values() if caller.deadline < time.monotonic()]:
                callers.pop(caller.link).link.close()
    finally:
        for link in callers:
            link.close()
    return accepted


def _greet(listener: socket.socket, nonce: str, callers: dict[socket.socket, _Caller], limit: int) -> None:
    """Add a new caller; where there are too many, in place of the oldest. Raises OSError if no file can be opened."""
    try:
        link, _ = listener.accept()
        callers[link] = _Caller(link, nonce)
    except (BlockingIOError, ConnectionError):  # it has left again
        return
    except OSError:
        if not callers:
            raise
        limit = 0
    if len(callers) > limit:
        callers.pop(next(iter(callers))).link.close()


def _identified(
    callers: dict[socket.socket, _Caller], link: socket.socket, token: str, purpose: Purpose, ranks: set[int]
) -> dict[str, Any] | None:
    """The hello of a caller that is one of the ranks, which is no longer among the callers; a stranger is closed."""
    if link not in callers:  # closed meanwhile, in favor of a new one
        return None
    try:
        hello = callers[link].read_hello()
        if hello is None:
            return None
        if callers[link].proves(hello, token, purpose) and hello["rank"] in ranks:
            del callers[link]
            return hello
    except (OSError, *INVALID_LINE):
        pass
    callers.pop(link).link.close()
    return None


def _connect(address: tuple[str, int], limit: RunningLimit) -> socket.socket:
    """A connection to rank 0, which may start later than this rank."""
    while True:
        try:
            return socket.create_connection(address, timeout=limit.left_s)
        except OSError:
            if limit.is_over:
                raise
            time.sleep(0.05)


def _send_line(link: socket.socket, value: Any) -> None:
    link.sendall(json.dumps(value).encode() + b"\n")


def _read_line(link: socket.socket, limit: RunningLimit) -> Any:
    """One JSON line within the limit, read byte by byte so that nothing after it is consumed."""
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
        link.settimeout(min(limit.left_s, TICK_S))
        try:
            byte = link.recv(1)
        except TimeoutError:
            if limit.is_over:
                raise
            continue
        if not byte:
            raise OSError("the other side closed the connection")
        line += byte
    return json.loads(line)
