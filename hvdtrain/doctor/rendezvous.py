"""Where rank 0 listens: how the other ranks learn it without Horovod or MPI."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from contextlib import suppress
from typing import NamedTuple

from hvdtrain.system.network import free_port
from hvdtrain.system.rank_info import RankInfo

MAX_ANSWER_BYTES = 1 << 16
RENDEZVOUS_S = 30
"""Time within which the ranks must connect."""


class Rendezvous(NamedTuple):
    """Where rank 0 listens, and the token that only this job's ranks know."""

    host: str
    port: int
    token: str


def offer(towards: str = "") -> Rendezvous:
    """A free port of this process and a new token. towards: an address on the network of the other hosts."""
    return Rendezvous(own_address(towards), free_port(""), secrets.token_hex(16))


def own_address(towards: str = "") -> str:
    """This host's address on the route to another one, or on its default route; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected, suppress(OSError):
        unconnected.connect((towards or "192.0.2.1", 9))
        return str(unconnected.getsockname()[0])
    return "127.0.0.1"


def from_gloo_store(rank: RankInfo) -> Rendezvous:
    """Exchange the rendezvous over the HTTP store of `horovodrun --gloo`. Raises OSError."""
    import urllib.error
    import urllib.request

    host, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
    if not host:
        raise OSError(f"{rank.launcher} did not set HOROVOD_GLOO_RENDEZVOUS_ADDR, the address of its store")
    url = f"http://{host}:{port}/hvdtrain-doctor/address"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the store is not behind a proxy
    if rank.rank == 0:
        own = offer(host)
        opener.open(urllib.request.Request(url, json.dumps(own).encode(), method="PUT"), timeout=10).close()
        return own
    deadline = time.monotonic() + RENDEZVOUS_S
    while True:
        try:
            with opener.open(url, timeout=10) as answer:
                return Rendezvous(*json.loads(answer.read(MAX_ANSWER_BYTES)))
        except urllib.error.HTTPError as error:
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
