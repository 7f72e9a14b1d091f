"""Runs that ended before their first step: a new run of the same name takes their folder."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from hvdtrain.runs import lock, metrics
from hvdtrain.system.files import Damaged, read_record
from hvdtrain.system.run_end import RunEnd

BEFORE_STEPS = re.compile(
    r"(config(-\d+)?|doctor|attempts|end)\.json|metrics\.(jsonl|prom)|logs|heartbeats|tensorboard|wandb|STOP"
)
"""What a run's folder may hold before the first step, besides its locks."""
AT_START = "members"
"""The only kind of record of metrics.jsonl that is written before the first step."""


def is_abandoned(folder: Path) -> bool:
    """Whether all that a folder holds is of a run that made no step, as far as its files say; or it holds nothing.

    Whether that run has ended, its lock says. Raises OSError if the folder cannot be read.
    """
    names = os.listdir(folder)
    others = [name for name in names if not lock.FILE.fullmatch(name)]
    if not all(map(BEFORE_STEPS.fullmatch, others)) or (others and len(others) == len(names)):
        return False
    end, records = RunEnd.read(folder), folder / metrics.NAME
    if end and (end.status == "finished" or (end.failure and end.failure.step is not None)):
        return False
    if os.path.exists(records) and any(record["kind"] != AT_START for record in metrics.read(records)):
        return False
    return not any(map(_has_rows, folder.glob("heartbeats/rank-*.json")))


def _has_rows(heartbeat: Path) -> bool:
    """Whether a rank has trained rows, or does not say so."""
    try:
        return bool(read_record(heartbeat, dict[str, Any])["rows"])
    except (Damaged, KeyError):
        return True


def clear(folder: Path) -> None:
    """Remove what is in a folder for which `is_abandoned` holds, except its locks. Raises OSError."""
    for name in filter(BEFORE_STEPS.fullmatch, os.listdir(folder)):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
