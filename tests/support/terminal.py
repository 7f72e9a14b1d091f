"""A command in a terminal of its own, and the frames that it draws there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path

from support.jobs import BIN, wait_for

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class TerminalCommand:
    """Runs a command in a terminal with that many columns and lines."""

    def __init__(self, command: list[str], folder: Path, columns: int, lines: int, **environment: str) -> None:
        self._terminal, other = pty.openpty()
        self.resize(columns, lines)
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "TERM": "xterm-256color", "PATH": path, **environment}
        variables.pop("COLUMNS", None)  # of pytest-xdist
        self.process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        self._content = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                content = os.read(self._terminal, 1 << 16)
            except OSError:  # the command has ended
                return
            if not content:
                return
            self._content += content

    @property
    def output(self) -> str:
        """All that it has written."""
        return self._content.decode(errors="replace")

    @property
    def frames(self) -> list[str]:
        """What `rich.live` has drawn on its screen, each time from the upper left corner, without colors."""
        drawn = self.output.partition("\x1b[?1049l")[0].split("\x1b[H")[1:]
        return [ESCAPES.sub("", frame).replace("\r", "") for frame in drawn]

    def wait_for_frame(self, text: str, timeout_s: float = 60) -> float:
        """Wait until a frame contains the text; the seconds that it took."""
        began, first = time.monotonic(), len(self.frames)
        wait_for(
            lambda: any(re.search(text, frame) for frame in self.frames[max(first - 1, 0) :]),
            timeout_s,
            lambda: f"no {text!r} in:\n{(self.frames or [self.output])[-1]}",
        )
        return time.monotonic() - began

    def finish(self, timeout_s: float = 60) -> int:
        """Its exit status."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self.process.kill()
            self._reader.join(5)
            os.close(self._terminal)
