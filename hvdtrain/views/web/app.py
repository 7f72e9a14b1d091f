"""What the page asks for: its files, and runs, one run, curves, options, logs and stacks as JSON."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask, Response, abort, request
from werkzeug.exceptions import HTTPException

from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import to_json
from hvdtrain.views.monitor.content import read_object, shown, table
from hvdtrain.views.monitor.messages import last_messages, log_ranks, log_text, stack_ranks, stack_text
from hvdtrain.views.web.access import Access
from hvdtrain.views.web.curve_store import CurveStore
from hvdtrain.views.web.links import leads_out
from hvdtrain.views.web.listing import ListedRun, Listing

MESSAGES = 60
"""Last messages of a run that are shown."""
MOST_OPTIONS = 300
GZIP_BYTES = 1 << 11
"""A longer answer is compressed."""
LOG = logging.getLogger(__name__)
RankList = Callable[[Path], list[int]]


def make_app(paths: list[Path], access: Access) -> Flask:
    """The application that shows the runs at or below the paths."""
    app = Flask(__name__, static_folder="static")
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.merge_slashes = False
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 0
    access.protect(app)
    listing, store = Listing(paths), CurveStore()
    routes: dict[str, Callable[[], Response]] = {
        "/": lambda: app.send_static_file("index.html"),
        "/api/runs": lambda: _answer(listing.changes(_since(listing.session))),
        "/api/run": lambda: _answer(_one_run(_asked(listing))),
        "/api/options": lambda: _answer(_options(_asked(listing))),
        "/api/curves": lambda: _answer(_curves(_asked(listing), store)),
        "/api/log": lambda: _answer(_lines(_asked(listing), log_ranks, log_text)),
        "/api/stacks": lambda: _answer(_lines(_asked(listing), stack_ranks, stack_text)),
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


def _since(session: str) -> int:
    """The version of the listing that the client has; 0 for one that has none of this process."""
    text = request.args.get("since", "")
    known = request.args.get("session") == session and text.isascii() and text.isdigit() and len(text) < 16
    return int(text) if known else 0


def _one_run(run: ListedRun) -> dict[str, Any]:
    """The state of a run and of its ranks."""
    folder, ranks = run.folder, run.view.ranks if run.view else ()
    end = RunEnd.read(folder)
    return {
        "run": run.values,
        "ranks": [{**rank.to_json(), "is_silent": rank.is_silent} for rank in ranks],
        "messages": [message._asdict() for message in last_messages(folder, MESSAGES)],
        "logs": log_ranks(folder),
        "stacks": stack_ranks(folder),
        "end": _end(end) if end else None,
    }


def _end(end: RunEnd) -> dict[str, Any]:
    """How a run ended, with texts that a page can show."""
    return {
        "status": end.status,
        "exit_status": end.exit_status,
        "reason": shown(end.reason),
        "rank": end.rank,
        "host": shown(end.host),
        "time": end.time,
    }


def _options(run: ListedRun) -> dict[str, Any]:
    """Options, versions and host of a run, as pairs of texts."""
    config = read_object(run.folder / "config.json")
    names = {"options": "config", "versions": "versions", "host": "host"}
    found = {title: list(table(config, name).items())[:MOST_OPTIONS] for title, name in names.items()}
    return {title: [[shown(name), _text(value)] for name, value in pairs] for title, pairs in found.items()}


def _text(value: Any) -> str:
    return shown(value if isinstance(value, str) else json.dumps(value))


def _curves(run: ListedRun, store: CurveStore) -> dict[str, Any]:
    return store.curves(run.folder, bool(run.view and run.view.state.is_over))


def _lines(run: ListedRun, ranks: RankList, read: Callable[[Path, int], list[str]]) -> dict[str, Any]:
    """What a rank of the request wrote to one of its files."""
    text = request.args.get("rank", "")
    rank = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else -1
    if rank not in ranks(run.folder):
        abort(404, "no such file of that rank")
    return {"lines": read(run.folder, rank)}


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
    """An error of the request, in one sentence."""
    headers = {"Allow": "GET, HEAD"} if error.code == 405 else {}
    return Response(to_json({"error": error.description}), error.code or 500, headers, mimetype="application/json")


def _failure(error: Exception) -> Response:
    """An error of the server: the client learns that there is one, the terminal which."""
    LOG.error("a request could not be answered", exc_info=error)
    return Response('{"error": "the server could not answer: its terminal says why"}', 500, mimetype="application/json")
