"""The search for runs: which folders are those of runs, and of finished ones."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.text import printable

RECORDS = ("config.json", "result.json")
"""Files by which a folder is a run's for sure."""
TRACES = (*RECORDS, "end.json", "heartbeats", metrics.NAME, "logs", "checkpoints")
"""Files and folders by which a run's folder is recognized."""


def is_run(folder: Path) -> bool:
    """Whether it is the folder of a run, perhaps of one that did not come far."""
    with contextlib.suppress(OSError):
        return any(name in TRACES or name.startswith("lock-") for name in os.listdir(folder))
    return False


def find_runs(path: Path) -> list[Path]:
    """The run at `path`, or the runs directly below it, by name.

    Raises UserError if there is no such folder, or it cannot be listed.
    """
    try:
        names = os.listdir(path)
    except OSError as error:
        known = {errno.ENOENT: "no such folder", errno.ENOTDIR: "not a folder"}
        why = known.get(error.errno or 0, f"cannot be listed ({error.strerror})")
        remedy = "give a run's folder, or one that contains runs, such as runs"
        raise UserError(f"{printable(str(path))}: {why}", remedy) from None
    if set(RECORDS) & set(names):
        return [path]
    below = sorted(child for child in names if not child.startswith(".") and is_run(path / child))
    return [path / child for child in below] or ([path] if is_run(path) else [])


def closed_folders(path: Path) -> list[str]:
    """The names of the folders directly below that may not be listed: whether they are runs is not known."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return sorted(
            printable(entry.name) for entry in entries if entry.is_dir() and not os.access(entry, os.R_OK | os.X_OK)
        )
    return []


def finished_runs(paths: Iterable[Path]) -> tuple[list[RecordedRun], list[str]]:
    """The runs in these folders or their direct children, and the names of unfinished ones, with the reason.

    Raises UserError if there are none, or if one cannot be read.
    """
    folders: dict[Path, Path] = {}
    unfinished: dict[Path, str] = {}
    for path in paths:
        for folder in find_runs(path):
            missing = [name for name in RECORDS if not (folder / name).is_file()]
            if not missing:
                folders.setdefault(folder.resolve(), folder)
            else:
                unfinished[folder.resolve()] = f"{printable(str(folder))}: no {' and no '.join(missing)}"
    if not folders:
        also = f" ({len(unfinished)} did not finish: {'; '.join(unfinished.values())})" if unfinished else ""
        given = ", ".join(printable(str(path)) for path in paths)
        remedy = f"give run folders, which contain {' and '.join(RECORDS)}"
        raise UserError(f"{given}: no finished run there{also}", remedy)
    return [RecordedRun(folder).require() for folder in folders.values()], list(unfinished.values())
