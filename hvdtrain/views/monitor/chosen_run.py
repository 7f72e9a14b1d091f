"""The run that a command line names: by its folder, or by its name among those in `runs`."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.system.text import did_you_mean, printable
from hvdtrain.views.monitor.run import newest_run

RUNS = Path("runs")
"""The default folder of runs."""
POLL_S = 0.5


def chosen_run(path: Path) -> Path:
    """The folder of a run: `path`, the newest run below it, or the run of that name in RUNS.

    Raises UserError if there is none.
    """
    named = RUNS / path
    if not os.path.isdir(path) and os.path.isdir(named):
        return newest_run(named)
    if os.path.isdir(path):
        return newest_run(path)
    name = printable(str(path))
    raise UserError(f"{name}: no such folder{_meant(path)}", "give a run's folder, or one that contains runs")


def _meant(path: Path) -> str:
    """The run whose name is close to that of the path."""
    for folder in (path.parent, RUNS):
        with contextlib.suppress(OSError):  # a folder that is missing, or may not be listed
            hint = did_you_mean(path.name, [child.name for child in folder.iterdir() if os.path.isdir(child)])
            if hint:
                return printable(hint)
    return ""


def awaited_run(path: Path) -> Path:
    """The same; waits until there is one."""
    while True:
        try:
            return chosen_run(path)
        except UserError:
            time.sleep(POLL_S)
