"""Where the page is served, and who may read it: GET only, with a token away from loopback, and nothing that another
web site can use.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import socket
import stat
from pathlib import Path

from flask import Flask, Request, Response, abort, request

from hvdtrain.errors import UserError
from hvdtrain.system.files import read_limited
from hvdtrain.system.text import printable

TOKEN_BYTES = 24
"""Random bytes of a token that is made here."""
MIN_CHARACTERS = 16
"""Of a token from a file."""
FORM = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]/\s]*)):(\d{1,5})")
REMEDY = "give HOST:PORT, such as 127.0.0.1:0, where port 0 takes a free one"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access:
    """Checks each request before it is answered.

    token: what a client must know; empty on loopback, where the name that it calls the server by is checked instead,
    as a web site may give its own name this machine's address (DNS rebinding). port: part of the cookie's name, as
    browsers send cookies to all ports of a host.
    """

    def __init__(self, token: str, port: int) -> None:
        self._token, self._cookie = token.encode(), f"hvdtrain-{port}"

    def protect(self, app: Flask) -> None:
        """Let the application answer permitted requests only."""
        app.before_request(self._check)
        app.after_request(self._complete)

    def _check(self) -> None:
        if request.method not in ("GET", "HEAD"):
            abort(405, "only GET: the page changes nothing")
        if not self._token and not names_loopback(request.host):
            abort(403, "this address is served to this machine only, as localhost or 127.0.0.1")
        if self._token and not (self._knows(request.cookies.get(self._cookie, "")) or self._asks_with_token(request)):
            abort(403, "open the address that hvdtrain watch --serve printed: it contains a token")

    def _complete(self, response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if self._token and self._asks_with_token(request):
            # The page itself removes the token from its address: after a redirection from a link on another site,
            # browsers do not send a cookie that is SameSite=Strict.
            response.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="Strict", path="/")
        return response

    def _asks_with_token(self, asked: Request) -> bool:
        return asked.path == "/" and self._knows(asked.args.get("token", ""))

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token)


def read_token(path: Path) -> str:
    """The token in a file. Raises UserError if it is short, no text, or the file is readable by other users."""
    name = f"--token-file {printable(str(path))}"
    try:
        mode, content = os.stat(path).st_mode, read_limited(path, 1 << 12).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise UserError(f"{name}: cannot be read ({reason})", "give a file that holds a random text") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"{name}: other users can access it", f"chmod 600 {printable(str(path))}")
    if len(content) < MIN_CHARACTERS or not all(letter.isalnum() or letter in "-_" for letter in content):
        remedy = f"write at least {MIN_CHARACTERS} letters, digits, - and _ into it"
        raise UserError(f"{name}: holds no token", remedy)
    return content


def listen(text: str) -> socket.socket:
    """A socket at `HOST:PORT` or `[IPv6 ADDRESS]:PORT`. Raises UserError if it is neither, or cannot be used."""
    match = FORM.fullmatch(text)
    if not match or int(match[3]) > 65535 or not (match[1] or match[2]):
        raise UserError(f"--serve {printable(text)}: no address to serve the page at", REMEDY)
    try:
        found = socket.getaddrinfo(match[1] or match[2], match[3], type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(found[0][4], family=found[0][0])
    except (OSError, UnicodeError) as error:
        reason = str(error.strerror).partition(" (")[0] if isinstance(error, OSError) else "no name of a host"
        remedy = "give an address of this machine, and a port that is free, or 0"
        raise UserError(f"--serve {printable(text)}: {reason}", remedy) from None


def url_of(bound: socket.socket) -> str:
    """How a bound socket is reached: by this machine's name, if it listens everywhere."""
    host, port = bound.getsockname()[:2]
    if _address_of(bound).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine reaches a bound socket."""
    return _address_of(bound).is_loopback


def _address_of(bound: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0])


def names_loopback(host: str) -> bool:
    """Whether the `Host` of a request, with or without a port, is one that no name server can give to a machine."""
    name = re.sub(r":\d{0,5}$", "", host).strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
