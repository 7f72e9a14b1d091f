"""The folder in which the program was started: what users name relative to it stays there if their code leaves it."""

import contextlib
import os
import sys
from pathlib import Path, PosixPath

START = ""
"""Known from the import of the package on, which scripts do before they leave it; empty in a notebook."""
with contextlib.suppress(OSError):
    # With -m, Python imports the package first.
    if hasattr(sys.modules["__main__"], "__file__") or sys.argv[:1] == ["-m"]:
        START = os.getcwd()
        script = sys.argv[0] if sys.argv else ""
        if not os.path.exists(script) and os.path.exists(os.path.join(os.environ.get("PWD", ""), script)):
            START = os.environ["PWD"]  # a script that has left it before its imports


class StartPath(PosixPath):
    """An absolute path that messages name as the user wrote it, relative to the folder of the start."""

    def __format__(self, form: str) -> str:
        return format(os.path.relpath(self, START or None), form)


def from_start(path: str | Path) -> Path:
    """The path, relative to the folder of the start, in a notebook to the present one, unless it is absolute."""
    if os.path.isabs(path) and not isinstance(path, StartPath):
        return Path(path)
    return StartPath(START or os.getcwd(), path)
