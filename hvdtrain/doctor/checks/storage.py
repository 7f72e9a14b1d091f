"""The folder of runs and the data sets.

Both are read in a subprocess, because a file system that does not respond hangs every process that reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.text import format_bytes

FREE_MIN, FREE = 100 << 20, 1 << 30
"""Free bytes on the disk of runs: below the first, no run can be written; below the second, space is low."""


def existing_folder(folder: Path) -> Path:
    """The folder as an absolute path, or its nearest ancestor that exists."""
    folder = Path(os.path.abspath(folder))
    return next((one for one in (folder, *folder.parents) if os.path.lexists(one)), Path("/"))


@check("machine", "host")
def check_folder(context: CheckContext) -> Iterator[Finding]:
    """the folder of runs is writable, has free space and supports locks"""
    wanted, found = Path(os.path.abspath(context.runs)), existing_folder(context.runs)
    where = str(wanted) if wanted == found else f"{found} (where {wanted.relative_to(found)} would be created)"
    answer, completed = context.probe("folder", str(found), limit_s=15)
    yield _folder_finding(where, answer, completed)


def _folder_finding(where: str, answer: dict[str, Any], completed: Completed) -> Finding:
    reason, remedy = completed.reason(), "give another folder with --runs, or correct its permissions"
    if "free" not in answer:
        return fail(f"{where} {'does not respond' if completed.timed_out else 'cannot be used'} ({reason})", remedy)
    if "written" not in answer:
        return fail(f"{where} is not writable ({reason})", remedy)
    if "locked" not in answer:
        remedy = "give a folder on another file system with --runs, or mount this one with locks"
        return fail(f"{where}: file locks do not work there ({reason})", remedy)
    free = format_bytes(answer["free"])
    if answer["free"] < FREE_MIN or answer["inodes"] == 0:
        return fail(f"{where} is full: {free} free", "delete files, or give another folder with --runs")
    text = f"{where} is writable and supports locks, {free} free"
    return warn(text, "delete files: checkpoints may not fit") if answer["free"] < FREE else ok(text)


@check("machine", "host")
def check_data(context: CheckContext) -> Iterator[Finding]:
    """published data sets on this host are complete"""
    root = os.environ.get("HVDTRAIN_DATA")
    if root and not os.path.isdir(os.path.expanduser(root)):
        yield warn(f"HVDTRAIN_DATA={root} is not a folder", "set it to the folder of fashion-mnist/, or unset it")
    answer, completed = context.probe("data", limit_s=60)
    if completed.status != 0:
        yield fail(f"data sets cannot be read ({completed.reason()})", "check the folder of HVDTRAIN_DATA")
        return
    for found in answer.values():
        if "damaged" in found:
            yield fail(found["damaged"], found["remedy"])
    complete = [f"{name} ({found['images']} images)" for name, found in answer.items() if "images" in found]
    missing = [name for name, found in answer.items() if "missing" in found]
    downloads = f"not here, downloaded when needed: {', '.join(missing)}"
    if complete:
        yield ok(f"complete: {', '.join(complete)}" + (f"; {downloads}" if missing else ""))
    elif missing:
        yield ok(f"{downloads}; digits and synthetic are always available")
