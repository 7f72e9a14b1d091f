"""A mirror of published files, for tests of downloads."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time


class Mirror:
    """A web server on this host that behaves well or badly.

    files: what it serves. requested: names of the files that were requested.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requested: list[str] = []
        self.delay_s = 0.0
        self.stop_after: int | None = None
        """Bytes of a file after which it sends nothing for `silent_s` seconds, and closes the connection."""
        self.silent_s = 0.0
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        name = request.path.strip("/")
        self.requested.append(name)
        time.sleep(self.delay_s)
        content = self.files.get(name)
        request.send_response(404 if content is None else 200)
        request.send_header("Content-Length", str(len(content or b"")))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write((content or b"")[: self.stop_after])
            request.wfile.flush()
            if self.stop_after is not None:
                time.sleep(self.silent_s)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
