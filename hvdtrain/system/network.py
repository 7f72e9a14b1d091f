"""This host's network interfaces and ports, and whether data may be downloaded."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError

SIOCGIFADDR, SIOCGIFFLAGS = 0x8915, 0x8913  # linux/sockios.h
IFF_UP, IFF_LOOPBACK = 0x1, 0x8  # linux/if.h
HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
"""A host's name or IPv4 address (RFC 1123), also with the underscores of Docker. It never begins like an option."""
VIRTUAL = re.compile(r"(docker|br-|virbr|veth|cni|flannel|cali|lxc|lxd|podman|vmnet|vboxnet|tailscale|tun|tap|dummy)")
"""Prefixes of interface names that container and VPN software uses; such interfaces lead to no other host."""


OFFLINE = "HVDTRAIN_OFFLINE"
"""Forbids all access to the network but that between ranks, if it is set and not 0."""


def is_offline() -> bool:
    """Whether the user forbids downloads, and trackers that need the network."""
    return os.environ.get(OFFLINE, "") not in ("", "0")


class Interface(NamedTuple):
    name: str
    address: str
    """IPv4."""

    @property
    def virtual(self) -> bool:
        """Whether it most likely leads to containers of this host only."""
        return bool(VIRTUAL.match(self.name)) or Path("/sys/class/net", self.name, "bridge").is_dir()


def interfaces() -> list[Interface]:
    """Interfaces that are up and have an IPv4 address, without loopback."""
    usable = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has no address
                address = socket.inet_ntoa(fcntl.ioctl(query, SIOCGIFADDR, request)[20:24])
                (flags,) = struct.unpack_from("H", fcntl.ioctl(query, SIOCGIFFLAGS, request), 16)
                if flags & IFF_UP and not flags & IFF_LOOPBACK:
                    usable.append(Interface(name, address))
    return usable


def address_of(name: str) -> str:
    """The IPv4 address of an interface. Raises UserError if it has none."""
    if name == "lo":
        return "127.0.0.1"
    addresses = {interface.name: interface.address for interface in interfaces()}
    if name not in addresses:
        available = ", ".join(addresses) or "none but lo"
        raise UserError(f"--interface {name}: no such interface is up on this host", f"choose one of: {available}")
    return addresses[name]


def gloo_variables(numbers: Sequence[int], host: str, store: tuple[str, int]) -> dict[str, str]:
    """Horovod's variables for a rank over Gloo, as horovodrun sets them.

    numbers: the rank and how many there are: in all, on its host, and across hosts. store: the rendezvous server.
    """
    kinds = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    values = {
        **dict(zip(kinds, numbers, strict=True)),
        "HOSTNAME": host,
        "GLOO_RENDEZVOUS_ADDR": store[0],
        "GLOO_RENDEZVOUS_PORT": store[1],
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{name}": str(value) for name, value in values.items()}


NOTICE_S = 15
"""How long after its last packet a host counts as lost, where nothing else is said."""


def notice_lost_hosts(connection: socket.socket, seconds: int = NOTICE_S) -> None:
    """Have the kernel close an idle TCP connection within `seconds`, at least 5, after the other host was lost."""
    interval = seconds // 5
    probes = ((socket.TCP_KEEPIDLE, seconds - 3 * interval), (socket.TCP_KEEPINTVL, interval), (socket.TCP_KEEPCNT, 3))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in probes:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class PortReservation:
    """Two consecutive free ports of an interface, which no other program gets until `release`, or this process ends.

    The sockets are bound and do not listen. Linux gives such a port to nobody who asks for any free one, but to a
    server that asks for this one and sets SO_REUSEADDR, as servers do. Raises OSError if there is no such interface.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._sockets: list[socket.socket] = []
        while len(self._sockets) < 2:
            self.release()
            self._sockets.append(_bound(address, 0))
            with contextlib.suppress(OSError, OverflowError):
                self._sockets.append(_bound(address, self.port + 1))

    @property
    def port(self) -> int:
        """The first of the ports."""
        return int(self._sockets[0].getsockname()[1])

    def release(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


def _bound(address: str, port: int) -> socket.socket:
    """A socket that is bound to a port which no other socket has, and that lets a server have it as well."""
    bound = socket.socket()
    try:
        bound.bind((address, port))
    except (OSError, OverflowError):
        bound.close()
        raise
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is free now on an interface together with the next one, which `rank_info.rendezvous` uses."""
    reserved = PortReservation(address)
    port = reserved.port
    reserved.release()
    return port
