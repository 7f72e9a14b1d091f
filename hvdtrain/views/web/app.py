"""`hvdtrain watch --serve`: the server of the page's files, and of runs, one run, curves, logs and stacks as JSON."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import resource
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask, Response, abort, request
from waitress import create_server
from waitress.channel import HTTPChannel
from werkzeug.exceptions import HTTPException

from hvdtrain.runs.records import shown
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.search import find_runs
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import format_ranks, to_json
from hvdtrain.views import details
from hvdtrain.views.details import LOGS, STACKS, RankFiles, newest_messages
from hvdtrain.views.web.access import TOKEN_BYTES, Access, is_loopback, listen, read_token, url_of
from hvdtrain.views.web.listing import ListedRun, Listing, leads_out, read_curves

THREADS = 6
"""A browser has at most six connections."""
COLLECT_AFTER = 200_000
"""Objects after which Python looks for cycles: with its default, that takes half the time of reading records."""
MAX_CONNECTIONS = 200
"""Of more, those are closed that have been idle for longest: connections without a request keep nobody out."""
MAX_WAIT = 120.0
"""Seconds until a client must have read an answer and sent its next request."""
MAX_HEADER_BYTES, MAX_BODY_BYTES = 1 << 16, 1 << 10
"""Of a request, which needs no body."""
MAX_OPTIONS = 300
GZIP_BYTES = 1 << 11
"""A longer answer is compressed."""
LOG = logging.getLogger(__name__)


def serve(paths: list[Path], address: str, token_file: Path | None, say: Callable[[str], None]) -> None:
    """Serve the page of the runs at or below the paths until Ctrl-C or SIGTERM.

    address: `HOST:PORT`; port 0 takes a free one. token_file: holds the token that clients need; without one they need
    none on loopback, and one that is made here elsewhere. say: prints the address. Raises UserError for an address that
    cannot be used, and for a path that is not there.
    """
    for path in paths:
        find_runs(path)
    token = read_token(token_file) if token_file else ""
    with listen(address) as bound:
        if not token and not is_loopback(bound):
            token = secrets.token_urlsafe(TOKEN_BYTES)
        logging.getLogger("waitress").setLevel(logging.ERROR)  # its warnings are of a queue, which does no harm
        server = create_server(
            make_app(paths, Access(token, bound.getsockname()[1])),
            sockets=[bound],
            threads=THREADS,
            ident=None,
            connection_limit=_connection_limit(),
            max_request_header_size=MAX_HEADER_BYTES,
            max_request_body_size=MAX_BODY_BYTES,
            clear_untrusted_proxy_headers=True,
        )
        server.channel_class = PageConnection
        gc.set_threshold(COLLECT_AFTER)
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            say(f"serving runs at {url_of(bound)}" + (f"?token={token}" if token else ""))
            server.run()  # ends at KeyboardInterrupt and SystemExit
        except (KeyboardInterrupt, SystemExit):  # before it ran
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
            server.close()


def _connection_limit() -> int:
    """Connections with which the server stops to accept more: twice as many as may be idle."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2 * (MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2))


class PageConnection(HTTPChannel):
    """A connection of a client, for which no thread waits. It closes another one where there are too many."""

    def __init__(self, server: Any, *given: Any, **named: Any) -> None:
        super().__init__(server, *given, **named)
        self._waits_since = time.monotonic()
        idle = [other for other in server.active_channels.values() if not (other.requests or other.will_close)]
        if 2 * len(idle) > self.adj.connection_limit:
            min(idle, key=lambda other: other.last_activity).will_close = True

    def service(self) -> None:
        """Answer one request. If there are more, their answers might not fit into the buffer, so it closes."""
        with self.requests_lock:  # which is held while what was received is divided into requests
            while self.requests[1:]:
                self.requests.pop().close()
                self.requests[0].headers["CONNECTION"] = "close"
        self._waits_since = time.monotonic()
        super().service()

    def writable(self) -> Any:
        """Whether to send or to close. The server's own limit begins anew with each byte of a slow client."""
        if not self.requests and time.monotonic() - self._waits_since > MAX_WAIT:
            self.will_close = True
        return super().writable()


def make_app(paths: list[Path], access: Access) -> Flask:
    app = Flask(__name__, static_folder="static")
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.merge_slashes = False
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 0
    access.protect(app)
    listing = Listing(paths)
    routes: dict[str, Callable[[], Response]] = {
        "/": lambda: app.send_static_file("index.html"),
        "/api/runs": lambda: _answer(listing.values()),
        "/api/run": lambda: _answer(_one_run(_asked(listing))),
        "/api/options": lambda: _answer(_options(_asked(listing))),
        "/api/curves": lambda: _answer(read_curves(_asked(listing).folder)),
        "/api/log": lambda: _answer(_lines(_asked(listing), LOGS)),
        "/api/stacks": lambda: _answer(_lines(_asked(listing), STACKS)),
    }
    for path, answer in routes.items():
        app.add_url_rule(path, path, answer)
    app.register_error_handler(HTTPException, _refusal)
    app.register_error_handler(Exception, _failure)
    return app


def _asked(listing: Listing) -> ListedRun:
    """The run of the request, by its name in the listing: no part of it becomes a path."""
    run = listing.run(request.args.get("run", "")) or abort(404, "no run of that name")
    if leads_out(run.folder, run.root):  # a link may have come into the folder since it was listed
        abort(404, "a link in the run's folder leads out of the folder that is served")
    return run


def _one_run(run: ListedRun) -> dict[str, Any]:
    folder = run.folder
    end = RunEnd.read(folder)
    facts = {"status": end.status, "exit_status": end.exit_status, "rank": end.rank, "time": end.time} if end else {}
    return {
        "run": run.values,
        "ranks": [rank.to_json() for rank in run.ranks],
        "messages": [
            {**message._asdict(), "ranks": format_ranks(message.ranks)} for message in newest_messages(folder)
        ],
        "logs": LOGS.ranks(folder),
        "stacks": STACKS.ranks(folder),
        "end": {**facts, "reason": shown(end.reason), "host": shown(end.host)} if end else None,
    }


def _options(run: ListedRun) -> dict[str, Any]:
    recorded = RecordedRun(run.folder)
    parts = {
        "test accuracy of classes": details.classes,
        "options": details.options,
        "versions": details.versions,
        "host": details.host,
    }
    return {
        title: [[name, details.value_text(value)] for name, value in list(values(recorded).items())[:MAX_OPTIONS]]
        for title, values in parts.items()
    }


def _lines(run: ListedRun, files: RankFiles) -> dict[str, Any]:
    text = request.args.get("rank", "")
    rank = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else -1
    lines = files.lines(run.folder, rank)
    return {"lines": abort(404, "no such file of that rank") if lines is None else lines}


def _answer(values: Any) -> Response:
    """JSON, compressed if it is long; without content for a client that has the same already."""
    try:
        content = json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:  # a number that JSON does not have, which takes longer
        content = to_json(values).encode()
    response = Response(content, mimetype="application/json")
    response.add_etag(weak=True)
    response.make_conditional(request)
    if response.status_code == 200 and len(content) > GZIP_BYTES and "gzip" in request.accept_encodings:
        response.set_data(gzip.compress(content, 3))
        response.headers["Content-Encoding"] = "gzip"
    response.headers["Vary"] = "Accept-Encoding, Cookie"
    return response


def _refusal(error: HTTPException) -> Response:
    headers = {"Allow": "GET, HEAD"} if error.code == 405 else {}
    return Response(to_json({"error": error.description}), error.code or 500, headers, mimetype="application/json")


def _failure(error: Exception) -> Response:
    """An error of the server: the client learns that there is one, the terminal which."""
    LOG.error("a request could not be answered", exc_info=error)
    return Response('{"error": "the server could not answer: its terminal says why"}', 500, mimetype="application/json")
