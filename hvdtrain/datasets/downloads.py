"""Bringing published files from the web: one gets its name only once it is whole and its SHA-256 is the right one."""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pooch
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hvdtrain.datasets.formats import CHUNK, LARGEST, Malformed, blame, check, said, shown
from hvdtrain.errors import UserError
from hvdtrain.system import rank_info

log = logging.getLogger(__name__)

ROUNDS = 2
"""Times that each mirror is tried."""
PAUSE_S = 1.0
"""Wait before the next round."""
SILENCE_S = 15.0
"""A mirror that says nothing for so long is given up."""
LONGEST_S = 1800.0
"""So is one that sends, but takes longer than this for a file."""
UNFINISHED = ".writing-"


def download(path: Path, urls: Sequence[str], sha256: str) -> None:
    """Bring the file `path` from the first URL that has it whole; one process does so while others wait.

    Raises UserError where no URL has it, or where the folder cannot be written to.
    """
    with blame(path, "make room there, or set HVDTRAIN_DATA to a folder that holds the data", verb="written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / ".lock"):
            if not path.exists():
                _store(path, _fetched(path.name, urls, sha256))


def _store(path: Path, content: bytes) -> None:
    """Write under another name and rename, so that nobody reads half a file."""
    for stale in path.parent.glob(f"{UNFINISHED}*"):  # of a process that was killed here; we hold the lock
        stale.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=UNFINISHED, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def _fetched(name: str, urls: Sequence[str], sha256: str) -> bytes:
    """The content of a file, from the first URL that gives the right one."""
    why = ""
    for attempt, url in enumerate([*urls] * ROUNDS):
        if attempt and attempt % len(urls) == 0:
            time.sleep(PAUSE_S)
        content = Bounded()
        try:
            _get(url, content, name)
            check(content, name, sha256)
            return content.getvalue()
        except Exception as error:  # from requests, a socket or gzip; the next mirror may do better
            why = said(error)
            log.warning("%s: %s", shown(url), why)
    raise UserError(
        f"{name}: no mirror has it whole (tried {shown(', '.join(urls))}; the last one's reason: {why}); "
        "look at the network, or set HVDTRAIN_DATA to a folder that holds the data"
    )


def _get(url: str, content: BinaryIO, name: str) -> None:
    """Download into `content`, with a bar on rank 0's terminal."""
    visible = rank_info.detect().rank == 0 and sys.stderr.isatty()
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not visible) as bar:
        pooch.HTTPDownloader(Meter(bar), CHUNK, timeout=SILENCE_S)(url, content, None)
    content.seek(0)


class Bounded(io.BytesIO):
    """What a mirror sends, as long as it is not more than any published file has."""

    def write(self, chunk: Any) -> int:
        if self.tell() + len(chunk) > LARGEST:
            raise Malformed(f"is longer than {LARGEST} bytes")
        return super().write(chunk)


class Meter:
    """What pooch asks of a progress bar, drawn by rich; it also ends a download that takes too long."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task, self._end = bar, bar.add_task("", total=None), time.monotonic() + LONGEST_S

    @property
    def total(self) -> float | None:
        return self._bar.tasks[self._task].total

    @total.setter
    def total(self, size: int) -> None:
        self._bar.update(self._task, total=size)

    def update(self, size: int) -> None:
        if time.monotonic() > self._end:
            raise TimeoutError(f"not done after {LONGEST_S:g} s")
        self._bar.advance(self._task, size)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        pass
