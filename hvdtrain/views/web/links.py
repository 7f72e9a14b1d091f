"""Symbolic links in runs' folders: what they lead to outside of the folder that is served, is not shown."""

from __future__ import annotations

import os
from pathlib import Path

FOLDERS = ("", "heartbeats", "logs")
"""Folders of a run whose files are read."""


def leads_out(folder: Path, root: Path) -> bool:
    """Whether a run's folder, or something in it that is read, is a symbolic link to outside of `root`."""
    if not _is_inside(folder, root):
        return True
    return any(not _is_inside(path, root) for name in FOLDERS for path in _links(folder / name))


def _links(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def _is_inside(path: Path | str, root: Path) -> bool:
    real = os.path.realpath(path)
    return Path(real).is_relative_to(os.path.realpath(root))
