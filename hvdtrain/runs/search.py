"""Finds the runs at or below a folder, also those that did not come far."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.system.text import printable

RECORDS = ("config.json", "result.json")
"""Files by which a folder is a run's for sure."""
TRACES = (*RECORDS, "end.json", "heartbeats", "metrics.jsonl", "logs", "checkpoints")
"""Files and folders by which a run's folder is recognized."""


def is_run(folder: Path) -> bool:
    """Whether it is the folder of a run, perhaps of one that did not come far."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name in TRACES or entry.name.startswith("lock-") for entry in entries)
    except OSError:
        return False


def find_runs(path: Path) -> list[Path]:
    """The run at `path`, or the runs directly below it, by name.

    Raises UserError if there is no such folder, or it cannot be listed.
    """
    name, remedy = printable(str(path)), "give a run's folder, or one that contains runs, such as runs"
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        raise UserError(f"{name}: no such folder", remedy) from None
    except NotADirectoryError:
        raise UserError(f"{name}: not a folder", remedy) from None
    except OSError as error:
        raise UserError(f"{name}: cannot be listed ({error.strerror})", "give folders that you may read") from None
    if set(RECORDS) & set(names):
        return [path]
    found = sorted(child for child in names if not child.startswith(".") and is_run(path / child))
    return [path / child for child in found] or ([path] if is_run(path) else [])
