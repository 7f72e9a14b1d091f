"""How the ranks of a ring find each other, and reject callers that do not know the job's token.

Rank 0 listens at the rendezvous address. Every other rank connects to it and says where it listens itself. Rank 0 then
sends the addresses of all ranks, and any two ranks connect, as an exchange of parts needs. The two sides of each
connection prove to each other that they know the token.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time

from hvdtrain.errors import TrainingError
from hvdtrain.system.handshake import Callers, introduce, receive
from hvdtrain.system.network import notice_lost_hosts
from hvdtrain.system.processes import TICK_S, RunningLimit
from hvdtrain.system.rank_info import RankInfo

PROOF_S = 5
"""Time within which a caller must prove that it is a rank."""
MAX_STRANGERS = 64
"""Callers that have not done so, beyond one for each rank."""
RANK = struct.Struct(">II")
"""What a rank sends to rank 0: its number, and the port on which it listens."""
NUMBER = struct.Struct(">I")
"""What a rank sends to another one: its number."""
LENGTH = struct.Struct(">I")
"""Before the addresses of all ranks, which are JSON."""
Address = tuple[str, int]


def connect_ranks(rank: RankInfo, address: Address, token: str, limit: RunningLimit) -> dict[int, socket.socket]:
    """Non-blocking connections to all other ranks, by rank.

    address: where rank 0 listens. limit: for all of it. Raises TrainingError if not all are connected by then: the
    next attempt of --restarts has another port, and perhaps other hosts.
    """
    links: dict[int, socket.socket] = {}
    try:
        addresses, listener = (_serve if rank.rank == 0 else _join)(rank, address, token, limit)
        strangers = rank.size + MAX_STRANGERS
        with contextlib.closing(Callers(listener, token, f"ring {rank.rank}", strangers, PROOF_S)) as callers:
            # Of two ranks, the lower one connects to the other. A rank first waits for all lower ones, as a connection
            # needs both sides at the same time.
            while missing := set(range(rank.rank)) - links.keys():
                _check(limit, callers, missing)
                for link in callers.take(min(limit.left_s, TICK_S)):
                    links[NUMBER.unpack(_receive(link, NUMBER.size, limit))[0]] = link
            for other in range(rank.rank + 1, rank.size):
                links[other] = _connect(addresses[other], token, f"ring {other}", limit)
                links[other].sendall(NUMBER.pack(rank.rank))
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"rank {rank.rank} cannot join the ring of {rank.size} at {address[0]}:{address[1]} ({error})",
            "check that all ranks were started, and that all their hosts can reach each other",
            rank=rank.rank,
        ) from None
    for link in links.values():
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_lost_hosts(link)
    return links


def _check(limit: RunningLimit, callers: Callers, missing: set[int]) -> None:
    if callers.hindrance:
        raise callers.hindrance
    if limit.is_over:
        raise OSError(f"rank {', '.join(map(str, sorted(missing)))} did not connect")


def _serve(rank: RankInfo, address: Address, token: str, limit: RunningLimit) -> tuple[list[Address], socket.socket]:
    """Rank 0's part: accept all other ranks, and send them the addresses. Also returns rank 0's own listener."""
    server = socket.create_server(address, backlog=rank.size + MAX_STRANGERS)
    callers = Callers(server, token, "rendezvous", rank.size + MAX_STRANGERS, PROOF_S)
    with contextlib.closing(callers), contextlib.ExitStack() as connections:
        listener = socket.create_server((server.getsockname()[0], 0))
        addresses = {0: listener.getsockname()[:2]}
        links = []
        while missing := set(range(rank.size)) - addresses.keys():
            _check(limit, callers, missing)
            for link in callers.take(min(limit.left_s, TICK_S)):
                links.append(connections.enter_context(link))
                number, port = RANK.unpack(_receive(link, RANK.size, limit))
                addresses[number] = link.getpeername()[0], port
        ordered = [addresses[number] for number in range(rank.size)]
        text = json.dumps(ordered).encode()
        for link in links:
            link.sendall(LENGTH.pack(len(text)) + text)
    return ordered, listener


def _join(rank: RankInfo, address: Address, token: str, limit: RunningLimit) -> tuple[list[Address], socket.socket]:
    """The part of ranks 1 and above: connect to rank 0. Also returns this rank's listener."""
    with _connect(address, token, "rendezvous", limit) as server:
        # On the interface that reaches rank 0: the port is not open on other networks.
        listener = socket.create_server((server.getsockname()[0], 0))
        server.sendall(RANK.pack(rank.rank, listener.getsockname()[1]))
        (size,) = LENGTH.unpack(_receive(server, LENGTH.size, limit))
        return [(host, port) for host, port in json.loads(_receive(server, size, limit))], listener


def _connect(address: Address, token: str, purpose: str, limit: RunningLimit) -> socket.socket:
    """A connection to another rank, which may start later than this one."""
    while True:
        try:
            link = socket.create_connection(address, timeout=limit.left_s)
            break
        except OSError:
            if limit.is_over:
                raise
            time.sleep(0.05)
    try:
        link.settimeout(min(limit.left_s, TICK_S))
        introduce(link, token, purpose, lambda: limit.is_over)
    except OSError:
        link.close()
        raise
    return link


def _receive(link: socket.socket, size: int, limit: RunningLimit) -> bytes:
    link.settimeout(min(limit.left_s, TICK_S))
    return receive(link, size, lambda: limit.is_over)
