"""What one rank prints: on the console with its number in front of each line, and in files where asked for."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from pathlib import Path
from typing import BinaryIO, TextIO

LAST_LINES = 8
"""Lines that the message about a failure shows."""


class RankOutput:
    """Prints whole lines only, so that lines of different ranks do not mix."""

    def __init__(self, rank: int, folder: Path | None) -> None:
        self._label = f"[{rank}] ".encode()
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._incomplete = {"stdout": b"", "stderr": b""}
        self._files: dict[str, BinaryIO] = {}
        if folder:
            names = list(self._incomplete)
            self._files = {name: (folder / f"rank-{rank}.{name}").open("ab", buffering=0) for name in names}

    def write(self, stream: str, data: bytes) -> None:
        """Take what the rank wrote to `stdout` or `stderr`."""
        if stream in self._files:
            self._files[stream].write(data)
        *lines, self._incomplete[stream] = (self._incomplete[stream] + data).split(b"\n")
        self._print(stream, lines)

    def close(self) -> None:
        for stream, rest in self._incomplete.items():
            self._print(stream, [rest] if rest else [])
        for file in self._files.values():
            file.close()

    def _print(self, stream: str, lines: list[bytes]) -> None:
        console: TextIO = getattr(sys, stream)
        with contextlib.suppress(BrokenPipeError):  # a closed console does not end a job
            console.buffer.write(b"".join(self._label + line + b"\n" for line in lines))
            console.flush()
        self.last_lines.extend(line.decode(errors="replace") for line in lines if line.strip())
