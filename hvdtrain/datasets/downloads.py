"""Downloads of published files: a file gets its name only when it is complete and its SHA-256 is right."""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import requests
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hvdtrain.datasets.formats.reading import (
    CHUNK,
    LARGEST,
    Malformed,
    check_sha256,
    one_line,
    wrap_errors,
)
from hvdtrain.errors import UserError
from hvdtrain.system import credentials, rank_info
from hvdtrain.system.files import write_atomically

log = logging.getLogger(__name__)

ROUNDS = 2
"""How often each mirror is tried."""
PAUSE_S = 1.0
"""Wait before the next round."""
SILENCE_S = 15.0
"""A mirror that sends nothing for this long is given up."""
LONGEST_S = 1800.0
"""A mirror that takes longer than this for a file is given up."""
USE_OTHER_FOLDER = "set HVDTRAIN_DATA to a folder that holds the data"


def download(path: Path, urls: Sequence[str], sha256: str) -> None:
    """Download the file `path` from the first URL that has it; one process does so while others wait for it.

    Raises UserError if no URL has a complete file with this SHA-256, or the folder is not writable.
    """
    with wrap_errors(path, f"free disk space there, or {USE_OTHER_FOLDER}", verb="written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / ".lock"):
            if not path.exists():
                content = _fetch(path.name, urls, sha256)
                for stale in path.parent.glob(f".{path.name}.*"):  # of a process that was killed
                    stale.unlink(missing_ok=True)
                write_atomically(path, content)


def _fetch(name: str, urls: Sequence[str], sha256: str) -> bytes:
    """The content of a file, from the first URL that sends it with the right SHA-256."""
    reason = ""
    for attempt, url in enumerate([*urls] * ROUNDS):
        if attempt and attempt % len(urls) == 0:
            time.sleep(PAUSE_S)
        try:
            content = _get(url, name)
            check_sha256(content, name, sha256)
            return content.getvalue()
        except Exception as error:  # from requests, a socket or gzip; the next mirror may work
            reason = one_line(error)
            log.warning("%s: %s", credentials.removed(url), reason)
    raise UserError(
        f"{name}: no mirror has it complete (tried {credentials.removed(', '.join(urls))}; the last error: {reason})",
        f"check the network, or {USE_OTHER_FOLDER}",
    )


def _get(url: str, name: str) -> io.BytesIO:
    """What a mirror sends, with a progress bar on rank 0's terminal."""
    visible = rank_info.detect().rank == 0 and sys.stderr.isatty()
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    content, end = io.BytesIO(), time.monotonic() + LONGEST_S
    with (
        requests.get(url, stream=True, timeout=SILENCE_S) as answer,
        Progress(*columns, console=Console(stderr=True), transient=True, disable=not visible) as bar,
    ):
        answer.raise_for_status()
        task = bar.add_task("", total=int(answer.headers.get("Content-Length", 0)) or None)
        for chunk in answer.iter_content(CHUNK):
            if time.monotonic() > end:
                raise TimeoutError(f"not complete after {LONGEST_S:g} s")
            if content.tell() + len(chunk) > LARGEST:
                raise Malformed(f"is longer than {LARGEST} bytes")
            content.write(chunk)
            bar.advance(task, len(chunk))
    content.seek(0)
    return content
