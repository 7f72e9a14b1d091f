"""What one rank prints: on the console with its number in front of each line, and in files where asked for."""

from __future__ import annotations

import os
from collections import deque

from hvdtrain.jobs.console import Console

LAST_LINES = 8
"""Lines that the message about a failure shows."""
TAIL_LINES = 200
"""Lines that are kept to find out why a rank failed: a chain of tracebacks may be long."""
LONGEST_LINE = 1 << 16
"""Bytes; what follows is printed as another line, as a program may print for ever without one."""


class RankOutput:
    """Prints whole lines only, so that lines of different ranks do not mix."""

    def __init__(self, rank: int, console: Console) -> None:
        self._label, self._console = f"[{rank}] ".encode(), console
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """The last lines that are not empty."""
        self._incomplete = {"stdout": b"", "stderr": b""}
        self._files: dict[str, int] = {}
        if console.output_dir:
            self._files = {name: self._open(f"rank-{rank}.{name}") for name in self._incomplete}

    def _open(self, name: str) -> int:
        """The descriptor of a file in --output-dir."""
        assert self._console.output_dir
        path = self._console.output_dir / name
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            self._console.say(f"{path} cannot be written ({error.strerror}); the job continues without it")
            return os.open(os.devnull, os.O_WRONLY)

    def write(self, stream: str, data: bytes) -> None:
        """Take what the rank wrote to `stdout` or `stderr`."""
        self.store(stream, data)
        *lines, rest = (self._incomplete[stream] + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._incomplete[stream] = rest
        self._print(stream, lines)

    def store(self, stream: str, data: bytes) -> None:
        """Write to the rank's file only."""
        if stream in self._files:
            self._console.store(self._files[stream], data)

    def close(self) -> None:
        """Print lines that have no end, and close the files."""
        for stream, rest in self._incomplete.items():
            self._print(stream, [rest] if rest else [])
            self._incomplete[stream] = b""
        for file in self._files.values():
            self._console.close(file)
        self._files.clear()

    def _print(self, stream: str, lines: list[bytes]) -> None:
        if lines:
            self._console.print(stream, b"".join(self._label + line + b"\n" for line in lines))
            self.tail.extend(line.decode(errors="replace") for line in lines if line.strip())
