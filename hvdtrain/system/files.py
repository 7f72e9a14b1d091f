"""Atomic writes: a reader sees the old content of a file or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file under another name in the same folder, then rename it.

    Raises OSError where the disk does not accept the content; the file at `path` is unchanged then.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
