"""The checkpoints in a folder: whether their files are as they were written, and the order in which they were written.

The checkpoints of a run form a line: each continues the one before it. Where training resumes from one that is not the
newest, those after it leave the line, although their steps may be higher. `state.json` of each checkpoint holds the
numbers of all checkpoints on its line, so the line is known after old ones were removed.

Standard library only: the launcher reads this as well as training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.errors import HvdtrainError
from hvdtrain.system.files import read_limited

MANIFEST, STATE = "manifest.json", "state.json"
FILES = ("weights.safetensors", "optimizer.safetensors", STATE)
LARGEST = 1 << 28
"""Largest file that is read, in bytes; files of the largest built-in network have less than 1 MB."""
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a file may raise that hvdtrain did not write; it may come from anyone."""

Line = tuple[tuple[int, int], ...]
"""Ranges (first, last) of the numbers of checkpoints of which each continues the one before it."""


class Damaged(HvdtrainError):
    """A checkpoint is incomplete, or its content is not what was written."""


@dataclass(frozen=True)
class Entry:
    """One checkpoint, as its state.json describes it."""

    path: Path
    step: int
    score: float
    written: int
    """Its number in the order of writing, from 1, over all lines of its run."""
    line: Line
    """All checkpoints that it continues, and itself."""

    def is_on(self, line: Line) -> bool:
        return any(first <= self.written <= last for first, last in line)


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, by name."""
    # For names too long to be a path os.path.isdir is False, while pathlib raises.
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if os.path.isdir(folder) else []


def entries(folder: Path) -> list[Entry]:
    """The checkpoints in a folder whose state.json is as it was written, in the order of writing."""
    found = [entry for path in paths(folder) if (entry := _entry(path))]
    # Checkpoints of older versions have no numbers: they precede the others, in the order of their steps.
    unnumbered = sorted((one for one in found if not one.written), key=lambda one: one.step)
    numbered = sorted((one for one in found if one.written), key=lambda one: one.written)
    first = [dataclasses.replace(one, written=i, line=((1, i),)) for i, one in enumerate(unnumbered, 1)]
    return first + numbered


def entry_of(path: Path) -> Entry | None:
    """The entry of one checkpoint; None if its state.json is damaged."""
    return next((one for one in entries(path.parent) if one.path == path), None)


def current_line(folder: Path) -> list[Entry]:
    """The newest checkpoint in a folder and those that it continues, oldest first."""
    known = entries(folder)
    return [one for one in known if one.is_on(known[-1].line)]


def newest_whole(folder: Path) -> Entry | None:
    """The checkpoint from which the run resumes: the newest of the current line whose files are all as written."""
    return next((one for one in reversed(current_line(folder)) if is_whole(one.path)), None)


def next_number(folder: Path) -> int:
    """The number of the next checkpoint in a folder: above those of all lines, also of the run's branches."""
    places = [folder, *branches(folder.parent)]
    return 1 + max((one.written for place in places for one in entries(place)), default=0)


def branches(run: Path) -> list[Path]:
    """The folders of a run that hold checkpoints of lines which were left."""
    return [path for path in run.glob("branch-*") if path.is_dir()]


def extended(line: Line, number: int) -> Line:
    """The line of the checkpoint with this number that continues `line`."""
    if line and line[-1][1] == number - 1:
        return (*line[:-1], (line[-1][0], number))
    return (*line, (number, number))


def is_whole(path: Path) -> bool:
    """Whether all files of a checkpoint are as they were written."""
    try:
        return bool(verified(path))
    except Damaged:
        return False


def verified(path: Path, names: tuple[str, ...] = FILES) -> dict[str, bytes]:
    """Files of a checkpoint. Raises Damaged if one is missing or does not have the manifest's checksum."""
    try:
        sums = dict(json.loads(read_limited(path / MANIFEST, LARGEST))["sha256"])
        contents = {name: read_limited(path / name, LARGEST) for name in names}
    except BROKEN as error:
        raise Damaged(f"{path}: incomplete ({error})") from None
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != sums.get(name):
            raise Damaged(f"{path}: {name} is not what was written (its SHA-256 differs from that in {MANIFEST})")
    return contents


def _entry(path: Path) -> Entry | None:
    """What state.json says of a checkpoint, with number 0 where it has none; None if it is damaged."""
    try:
        state = json.loads(verified(path, (STATE,))[STATE])
        history = state.get("history", {"written": 0, "line": []})
        step, score, line = _count(state["position"]["step"]), float(state["score"]), history["line"]
        if not math.isfinite(score):
            return None
        ranges = tuple((_count(first), _count(last)) for first, last in line)
        return Entry(path, step, score, _count(history["written"]), ranges)
    except (Damaged, *BROKEN):
        return None


def _count(value: Any) -> int:
    """A number of steps or checkpoints. Raises ValueError if it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.80} is not a count")
    return value
