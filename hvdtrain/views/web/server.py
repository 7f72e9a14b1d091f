"""`hvdtrain watch --serve`: the page's server, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import gc
import logging
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from waitress import create_server

from hvdtrain.runs.search import find_runs
from hvdtrain.views.web.access import TOKEN_BYTES, Access, read_token
from hvdtrain.views.web.address import Address, bound_address, is_loopback
from hvdtrain.views.web.app import make_app

THREADS = 6
"""A browser has at most six connections."""
COLLECT_AFTER = 200_000
"""Objects after which Python looks for cycles: with its default, that takes half the time of reading records."""
MOST_BODY_BYTES = 1 << 10
"""Of a request, which needs none."""


def serve(paths: list[Path], address: str, token_file: Path | None = None, say: Callable[[str], None] = print) -> None:
    """Serve the page of the runs at or below the paths until Ctrl-C or SIGTERM.

    address: `HOST:PORT`; port 0 takes a free one. token_file: holds the token that clients need; without one they need
    none on loopback, and one that is made here elsewhere. say: prints the address. Raises UserError for an address that
    cannot be used, and for a path that is not there.
    """
    for path in paths:
        find_runs(path)
    token = read_token(token_file) if token_file else ""
    bound = Address.parse(address).listen()
    with bound:
        if not token and not is_loopback(bound):
            token = secrets.token_urlsafe(TOKEN_BYTES)
        url = bound_address(bound)
        logging.getLogger("waitress").setLevel(logging.ERROR)  # its warnings are of a queue, which does no harm
        server = create_server(
            make_app(paths, Access(token, url.port)),
            sockets=[bound],
            threads=THREADS,
            ident=None,
            max_request_body_size=MOST_BODY_BYTES,
            clear_untrusted_proxy_headers=True,
        )
        gc.set_threshold(COLLECT_AFTER)
        before = signal.signal(signal.SIGTERM, _end)
        try:
            say(f"serving runs at http://{url}/" + (f"?token={token}" if token else ""))
            server.run()  # ends at KeyboardInterrupt and SystemExit
        except (KeyboardInterrupt, SystemExit):  # before it ran
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
            server.close()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
