"""What the launcher writes: to its standard output and error, and to the files of --output-dir.

Threads open and write, so that a full disk, a closed pipe, a file server that does not respond or a reader that has
stopped (Ctrl-S, `| less`) never ends a job or holds up its supervision. A reader that is only slow gets everything:
`room` lets the ranks wait for it.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hvdtrain.system.text import fitted

QUEUE_BYTES = 1 << 24
"""How much waits for a reader before the ranks do."""
STALLED_S = 10.0
"""After this time without a byte taken, ranks no longer wait, and what does not fit is lost."""
FLUSH_S = 3.0
"""When the job has ended: how long a reader may take nothing until the rest is lost."""
CHUNK_BYTES = 4096
WAIT_S = 0.02
File = int | Path
"""A descriptor, or the path of a file that is opened when it is first written, and appended to until the end."""


class Sink:
    """Files that one thread writes, in order. name: for messages. say: prints one, once for each kind of fault."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say, self._error_said = name, say, False
        self._queue: deque[tuple[File, bytes]] = deque()
        self._descriptors: dict[Path, int] = {}
        self._changed = threading.Condition()
        self._waiting_bytes, self._lost_lines = 0, 0
        self._moved_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def write(self, file: File, data: bytes) -> None:
        """Hand data for a file to the thread; never waits."""
        with self._changed:
            if self.full and self._idle_s > STALLED_S:
                self._lost_lines += data.count(b"\n")
                return
            lost, self._lost_lines = self._lost_lines, 0
            if not self._waiting_bytes:
                self._moved_at = time.monotonic()
            self._queue.append((file, data))
            self._waiting_bytes += len(data) + 1  # also where only a file is opened
            self._changed.notify_all()
            if not self._thread:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        if lost:
            self._say(f"{lost} lines for {self._name} are lost, as nothing was read for {STALLED_S:.0f} s")

    @property
    def full(self) -> bool:
        """Whether more waits to be written than should."""
        return self._waiting_bytes > QUEUE_BYTES

    @property
    def _idle_s(self) -> float:
        """Seconds since something was written, or began to wait."""
        return time.monotonic() - self._moved_at

    @property
    def waits(self) -> bool:
        """Whether there is no room, and the reader has not stopped: what is to be written is to wait as well."""
        return self.full and self._idle_s < STALLED_S

    def flush(self) -> None:
        """Wait until everything is written, unless the reader has stopped."""
        self._moved_at = time.monotonic()
        with self._changed:
            while self._waiting_bytes and self._idle_s < FLUSH_S:
                self._changed.wait(0.1)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                file, data = self._queue.popleft()
            try:
                self._write_all(self._descriptor(file), data)
            except OSError as error:
                if not self._error_said:
                    self._error_said = True
                    self._say(f"{self._name} cannot be written ({error.strerror}); the job continues without it")
            with self._changed:
                self._waiting_bytes -= len(data) + 1
                self._changed.notify_all()

    def _descriptor(self, file: File) -> int:
        """The descriptor of a file, which is opened first; of a file that cannot be opened, that of /dev/null."""
        if isinstance(file, int):
            return file
        if file not in self._descriptors:
            try:  # O_NONBLOCK: a named pipe that nobody reads is an error
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
                self._descriptors[file] = os.open(file, flags, 0o666)
            except OSError as error:
                self._say(f"{file} cannot be written ({error.strerror}); the job continues without it")
                self._descriptors[file] = os.open(os.devnull, os.O_WRONLY)
        return self._descriptors[file]

    def _write_all(self, file: int, data: bytes) -> None:
        # In small parts, so that a slow reader is known from one that has stopped.
        for start in range(0, len(data), CHUNK_BYTES):
            rest = data[start : start + CHUNK_BYTES]
            while rest:
                try:
                    rest = rest[os.write(file, rest) :]
                except BlockingIOError:  # another process has made the terminal or pipe non-blocking
                    ready = select.poll()  # select() has a limit of 1024 files
                    ready.register(file, select.POLLOUT)
                    ready.poll()
                self._moved_at = time.monotonic()


class Console:
    """All that a launcher writes. output_dir: the existing folder of the ranks' files, if any."""

    def __init__(self, output_dir: Path | None = None) -> None:
        _open_closed_streams()
        self.output_dir = output_dir
        stdout = Sink("standard output", self.say)
        # One thread where both lead to the same terminal, pipe or file, to keep the order of lines.
        same = os.path.samestat(os.fstat(1), os.fstat(2))
        self._streams = {1: stdout, 2: stdout if same else Sink("standard error", self._say_about_stderr)}
        self._files = Sink(f"--output-dir {output_dir}", self.say)

    def say(self, message: object) -> None:
        self.print("stderr", f"hvdtrain: {message}\n".encode(errors="backslashreplace"))

    def _say_about_stderr(self, message: str) -> None:
        self.print("stdout", f"hvdtrain: {message}\n".encode(errors="backslashreplace"))

    def print(self, stream: str, data: bytes) -> None:
        number = {"stdout": 1, "stderr": 2}[stream]
        self._streams[number].write(number, data)

    def print_lines(self, stream: str, label: str, lines: list[bytes]) -> None:
        """Print lines, each after a label; in a terminal, long ones break between words."""
        width = _terminal_width({"stdout": 1, "stderr": 2}[stream])
        if width is None:
            self.print(stream, b"".join(label.encode() + line + b"\n" for line in lines))
            return
        texts = (f"{label}{line.decode(errors='surrogateescape')}" for line in lines)
        printed = "".join(f"{fitted(text, width, len(label) + 2)}\n" for text in texts)
        self.print(stream, printed.encode(errors="surrogateescape"))

    def store(self, file: Path, data: bytes) -> None:
        self._files.write(file, data)

    @property
    def waits(self) -> bool:
        return any(sink.waits for sink in self._sinks)

    async def room(self, is_needed: Callable[[], bool] = lambda: True) -> None:
        """While it is needed, wait until there is room for more, unless what reads it has stopped."""
        while self.waits and is_needed():
            await asyncio.sleep(WAIT_S)

    @property
    def _sinks(self) -> tuple[Sink, ...]:
        return self._files, *self._streams.values()

    def flush(self) -> None:
        for sink in self._sinks:
            sink.flush()


def _terminal_width(descriptor: int) -> int | None:
    try:
        return os.get_terminal_size(descriptor).columns
    except OSError:
        return None


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed: another file would get its number, and the output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
