"""The server of the page, started as users start it, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from support.jobs import start


class Served(NamedTuple):
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    port: int
    token: str

    def get(self, target: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, and body of the answer to a request; a header's name with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(
                method, target, headers={name.replace("_", "-"): value for name, value in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def json(self, path: str, **query: object) -> Any:
        """The JSON at api/<path>."""
        status, _, body = self.get(f"/api/{path}?{urlencode(query)}")
        assert status == 200, body
        return json.loads(body)


@contextlib.contextmanager
def serving(
    folder: Path, *arguments: str, address: str = "127.0.0.1:0", command: Sequence[str] = ("python", "-m", "hvdtrain")
) -> Iterator[Served]:
    """The server for `folder`, until the context ends."""
    process = start([*command, "watch", *arguments, "--serve", address], folder)
    try:
        line = process.stdout.readline()
        match = re.fullmatch(r"serving runs at (http://[^/]+:(\d+)/(?:\?token=(\S+))?)\n", line)
        assert match, line + (process.communicate(timeout=20)[0] if process.poll() is not None else "")
        yield Served(process, match[1], int(match[2]), match[3] or "")
    finally:
        process.terminate()
        assert process.communicate(timeout=20)[0] == ""
        assert process.returncode == 0
