"""The checkpoints in a folder: whether their files are as they were written, and the order in which they were written.

Each checkpoint continues the one that was written before it: those that training does not continue are moved to another
folder, a branch, before the next one is written.

Standard library only: the launcher reads this as well as training.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.errors import HvdtrainError
from hvdtrain.system.files import open_regular, read_limited

MANIFEST, STATE = "manifest.json", "state.json"
WEIGHTS, OPTIMIZER = "weights", "optimizer"
"""What the names of the files with arrays begin with."""
FILES = ("weights.safetensors", "optimizer.safetensors", STATE)
"""The files of a checkpoint whose arrays are not divided over several files."""
BEST = "best"
"""In a run's folder, the name by which users mean its best checkpoint; there is no file of it. After a colon it may say
by which figure: `best:min:perplexity`."""
MAX_BYTES = 1 << 28
"""The largest JSON file that is read, in bytes; those of the largest built-in network have less than 1 MB."""
MAX_FILES = 10_000
"""Over which weights or optimizer state are divided."""
CHUNK_BYTES = 1 << 24
"""Bytes of a file with arrays that are read or written at a time."""
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a file may raise that hvdtrain did not write; it may come from anyone."""


class Damaged(HvdtrainError):
    """A checkpoint is incomplete, or its content is not what was written."""


@dataclass(frozen=True)
class Entry:
    """One checkpoint, as its state.json describes it."""

    path: Path
    step: int
    score: float
    written: int
    """Its number in the order of writing, from 1, also among those in branches of its run."""
    score_choice: str = ""
    """What its score is of; only scores of the same are compared."""


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, by name."""
    # For names too long to be a path os.path.isdir is False, while pathlib raises.
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if os.path.isdir(folder) else []


def entries(folder: Path) -> list[Entry]:
    """The checkpoints in a folder whose state.json is as it was written, in the order of writing."""
    return sorted((entry for path in paths(folder) if (entry := entry_of(path))), key=lambda entry: entry.written)


def newest_whole(folder: Path) -> Entry | None:
    """The checkpoint from which the run resumes: the newest whose files are all as written."""
    return next((entry for entry in reversed(entries(folder)) if is_whole(entry.path)), None)


def best_first(known: Sequence[Entry]) -> list[Entry]:
    """Those of these checkpoints, oldest first, that have a score of the kind that was measured last, best first."""
    scored = [entry for entry in known if entry.score > 0]
    comparable = [entry for entry in scored if entry.score_choice == scored[-1].score_choice]
    return sorted(comparable, key=lambda entry: (entry.score, entry.written), reverse=True)


def run_of_best(path: Path) -> Path | None:
    """The run of which `path`, `RUN/best` or `RUN/best:CHOICE`, names the best checkpoint; None for another path."""
    is_name = (
        path.name.partition(":")[0] == BEST and not os.path.lexists(path) and os.path.isdir(path.parent / "checkpoints")
    )
    return path.parent if is_name else None


def run_of(path: Path) -> Path | None:
    """The run of the checkpoint that `path` names: `RUN/best` or the checkpoint's folder; None for another path."""
    return run_of_best(path) or (path.absolute().parent.parent if os.path.isfile(path / MANIFEST) else None)


def next_number(folder: Path) -> int:
    """The number of the next checkpoint in a folder: above those of all others, also of the run's branches."""
    places = [folder, *branches(folder.parent)]
    return 1 + max((entry.written for place in places for entry in entries(place)), default=0)


def branches(run: Path) -> list[Path]:
    """The folders of a run that hold checkpoints which training did not continue."""
    return [path for path in run.glob("branch-*") if path.is_dir()]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint's files were when it was written."""

    path: Path
    """Folder of the checkpoint."""
    sums: dict[str, str]
    """SHA-256 of each file, in hexadecimal digits, by name."""
    sizes: dict[str, int]
    """Bytes of each file."""

    def files_of(self, stem: str) -> tuple[str, ...]:
        """The files with the arrays of WEIGHTS or OPTIMIZER, in order. Raises Damaged if it does not list them."""
        named = [name for name in self.sums if name.startswith(f"{stem}-")]
        names = array_files(stem, min(len(named), MAX_FILES) or 1)
        if len(named) > MAX_FILES or not self.sums.keys() >= set(names):
            raise Damaged(f"{self.path}: {MANIFEST} does not list all files of the {stem}")
        return names

    def check(self, name: str, digest: str, size: int) -> None:
        """Raise Damaged unless a file has this checksum and size (in bytes)."""
        if size != (written := self.sizes.get(name)):
            raise Damaged(f"{self.path}: {name} has {size} bytes, of {written!r:.80} that were written")
        if digest != self.sums.get(name):
            raise Damaged(f"{self.path}: {name} is not what was written (its SHA-256 differs from that in {MANIFEST})")


def array_files(stem: str, count: int) -> tuple[str, ...]:
    """The names of the files over which the arrays of WEIGHTS or OPTIMIZER are divided."""
    if count == 1:
        return (f"{stem}.safetensors",)
    return tuple(f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint in folder `path`. Raises Damaged if there is none."""
    try:
        content = json.loads(read_limited(path / MANIFEST, MAX_BYTES))
        sums, sizes = content["sha256"], content["bytes"]
        if not (isinstance(sums, dict) and isinstance(sizes, dict)):
            raise ValueError(f"{MANIFEST} holds no checksums")
        return Manifest(path, sums, sizes)
    except BROKEN as error:
        raise Damaged(f"{path}: incomplete ({error})") from None


def read_state(manifest: Manifest) -> dict[str, Any]:
    """The content of state.json. Raises Damaged if it was changed, ValueError if it is not a JSON object."""
    try:
        data = read_limited(manifest.path / STATE, MAX_BYTES)
    except BROKEN as error:
        raise Damaged(f"{manifest.path}: incomplete ({error})") from None
    manifest.check(STATE, hashlib.sha256(data).hexdigest(), len(data))
    state = json.loads(data)
    if not isinstance(state, dict):
        raise ValueError(f"{STATE} holds no object")
    return state


def is_whole(path: Path) -> bool:
    """Whether all files of a checkpoint are as they were written."""
    try:
        manifest = read_manifest(path)
        verify(manifest, (*manifest.files_of(WEIGHTS), *manifest.files_of(OPTIMIZER), STATE))
        return True
    except Damaged:
        return False


def verify(manifest: Manifest, names: Iterable[str]) -> None:
    """Raise Damaged unless these files are as they were written. They may be larger than the memory."""
    for name in names:
        try:
            digest, size = _digest(manifest.path / name)
        except BROKEN as error:
            raise Damaged(f"{manifest.path}: incomplete ({error})") from None
        manifest.check(name, digest, size)


def _digest(path: Path) -> tuple[str, int]:
    """SHA-256 and bytes of a file."""
    digest, size, chunk = hashlib.sha256(), 0, bytearray(CHUNK_BYTES)
    with open_regular(path) as file:
        while count := file.readinto(chunk):
            digest.update(memoryview(chunk)[:count])
            size += count
    return digest.hexdigest(), size


def entry_of(path: Path) -> Entry | None:
    """What state.json says of a checkpoint; None if it is damaged."""
    try:
        state = read_state(read_manifest(path))
        history = state["history"]
        step, score = _count(state["position"]["step"]), float(state["score"])
        if not math.isfinite(score):
            return None
        return Entry(path, step, score, _count(history["written"]), str(state.get("score_choice", "")))
    except (Damaged, *BROKEN):
        return None


def _count(value: Any) -> int:
    """A number of steps or checkpoints. Raises ValueError if it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.80} is not a count")
    return value
