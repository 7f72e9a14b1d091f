"""Standard output and standard error of a command.

Each line is one system call: launchers put a label before each piece of output that they read, and `print` by itself
writes a line and its end separately if Python does not buffer, as horovodrun asks it to do.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hvdtrain.errors import HvdtrainError
from hvdtrain.system.rank_info import LAUNCH, VARIABLES

CLOSED_PIPE_STATUS = 128 + signal.SIGPIPE
"""What a shell reports of a program that SIGPIPE ended."""


class OutputError(HvdtrainError):
    """Standard output does not accept what a command prints; without a text if its reader is gone (`| head`)."""

    def __init__(self, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            super().__init__("")
            self.exit_status = CLOSED_PIPE_STATUS
        else:
            super().__init__(f"standard output cannot be written ({error.strerror})", "redirect it to another file")


class OutputFile(io.FileIO):
    """The file of a standard stream, without a buffer. What standard error does not accept is lost."""

    failure: OSError | None = None
    """The newest error of standard output."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        try:
            while rest:
                written = super().write(rest)
                if written is None:  # somebody else made the terminal non-blocking
                    select.select([], [self], [])
                rest = rest[written or 0 :]
        except OSError as error:
            if self.fileno() != sys.__stderr__.fileno():  # type: ignore[union-attr]
                self.failure = error
                raise
        return len(data)

    def isatty(self) -> bool:
        return super().isatty() and suits_colors(os.environ)


def suits_colors(environment: Mapping[str, str]) -> bool:
    """Whether a terminal takes colors and progress bars: not a dumb one, nor the one that Open MPI gives to rank 0.

    Open MPI reads what is written there and passes it on, perhaps to a file.
    """
    by_mpirun = VARIABLES["mpirun"][0] in environment and VARIABLES[LAUNCH][0] not in environment
    return environment.get("TERM") != "dumb" and not by_mpirun


class Stream(io.TextIOWrapper):
    """Text in whole lines; the beginning of a line waits for its end, or for `flush`."""

    def write(self, text: str) -> int:
        lines, end, rest = text.rpartition("\n")
        if end:
            super().write(lines + end)
            self.flush()
        super().write(rest)
        return len(text)


def prepare_streams() -> None:
    """Let standard output and standard error write whole lines.

    Streams that a program has replaced stay as they are; a closed one (`>&-`) becomes /dev/null.
    """
    for name in ("stdout", "stderr"):
        stream, original = getattr(sys, name), getattr(sys, f"__{name}__")
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the process ends)
        elif stream is original:
            stream.flush()
            file = OutputFile(stream.fileno(), "w", closefd=False)
            setattr(sys, name, Stream(file, encoding=stream.encoding, errors="backslashreplace"))


@contextlib.contextmanager
def output_errors() -> Iterator[None]:
    """Flush standard output at the end; turn its errors into OutputError."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        file = getattr(sys.stdout, "buffer", None)
        if isinstance(file, OutputFile) and error is file.failure:
            raise OutputError(error) from None
        raise
