"""Where the page is served: `HOST:PORT`, the socket that listens there, and what the page is called by."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system.text import printable

FORM = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]/\s]*)):(\d{1,5})")
REMEDY = "give HOST:PORT, such as 127.0.0.1:0, where port 0 takes a free one"


class Address(NamedTuple):
    """A host and a port to listen on."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """From `HOST:PORT` or `[IPv6 ADDRESS]:PORT`. Raises UserError if it is neither."""
        match = FORM.fullmatch(text)
        if not match or int(match[3]) > 65535 or not (match[1] or match[2]):
            raise UserError(f"--serve {printable(text)}: no address to serve the page at", REMEDY)
        return cls(match[1] or match[2], int(match[3]))

    def listen(self) -> socket.socket:
        """A socket that is bound to it. Raises UserError if the port is taken, or the host is none of this machine."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError):
            raise UserError(f"--serve {printable(str(self))}: no host of that name", REMEDY) from None
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen()  # without it, two sockets with SO_REUSEADDR may have the same port
        except OSError as error:
            bound.close()
            remedy = "choose another port, or 0 for a free one; an address must be one of this machine's"
            raise UserError(f"--serve {printable(str(self))}: {error.strerror}", remedy) from None
        return bound

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bound_address(bound: socket.socket) -> Address:
    """The address by which a bound socket is reached: that of this machine's name for one that listens everywhere."""
    host, port = bound.getsockname()[:2]
    return Address(socket.gethostname() if ipaddress.ip_address(host.partition("%")[0]).is_unspecified else host, port)


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine reaches a bound socket."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def names_loopback(host: str) -> bool:
    """Whether the `Host` of a request, with or without a port, is one that no name server can give to a machine."""
    name = re.sub(r":\d{0,5}$", "", host).strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
