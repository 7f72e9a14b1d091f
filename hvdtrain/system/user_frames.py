"""The part of a traceback that a user wrote: from the first frame of the user's files on, without hvdtrain's frames."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
INSTALLED = ("site-packages", "dist-packages")
MAX_CHARACTERS = 6000
"""Of all lines: what a rank says to its agent has to fit into a pipe. A recursion has more."""


def user_lines(error: BaseException) -> tuple[str, ...]:
    """The lines of the traceback of an exception in a user's code; none where no frame of it is the user's.

    Errors of syntax have no frame, but the line and a caret. An exception of another process has an attribute
    `user_lines`, which that process made.
    """
    known = getattr(error, "user_lines", None)
    if isinstance(known, tuple):
        return known
    summary = traceback.TracebackException.from_exception(error)
    if not _keep_users(summary) and not isinstance(error, SyntaxError):
        return ()
    return _shortened([line for text in summary.format() for line in text.rstrip("\n").split("\n")])


def _keep_users(summary: traceback.TracebackException) -> bool:
    """Remove the other frames of an exception, and of those that led to it; whether its own has some left."""
    for other in (summary.__cause__, summary.__context__):
        if other:
            _keep_users(other)
    frames = list(summary.stack)
    first = next((number for number, frame in enumerate(frames) if _is_users(frame.filename)), len(frames))
    kept = [frame for frame in frames[first:] if not _is_hidden(frame.filename)]
    summary.stack[:] = kept
    return bool(kept)


def _is_users(file: str) -> bool:
    """Whether it is neither hvdtrain's, nor Python's, nor that of an installed package."""
    is_library = file.startswith(tuple(f"{path}{os.sep}" for path in LIBRARIES)) or file.startswith("<")
    return not (is_library or Path(file).is_relative_to(PACKAGE) or set(INSTALLED) & set(Path(file).parts))


def _is_hidden(file: str) -> bool:
    return Path(file).is_relative_to(PACKAGE) or file.startswith("<frozen ")


def _shortened(lines: list[str]) -> tuple[str, ...]:
    """At most MAX_CHARACTERS of the lines, from both ends."""
    text, half = "\n".join(lines), MAX_CHARACTERS // 2
    if len(text) <= MAX_CHARACTERS:
        return tuple(lines)
    return (*text[:half].split("\n"), "  ...", *text[-half:].split("\n"))
