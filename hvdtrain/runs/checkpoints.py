"""Checkpoints on disk: safetensors files with a manifest of their SHA-256 sums. Independent of frameworks and ranks.

A checkpoint is a folder `step-00000042` that appears complete or not at all: it is written under another name, each
file and the folder are flushed to disk, it is renamed, and the parent folder is flushed. So a kill at any moment
leaves earlier checkpoints intact. Reading verifies every sum, so damage is detected.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import stat
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.networks.description import Network, Weights
from hvdtrain.networks.registry import NETWORKS

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")
UNFINISHED = ".writing-"
LARGEST = 1 << 28
"""Largest file that is read, in bytes; files of the largest built-in network have less than 1 MB."""
BROKEN = (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError,
)  # fmt: skip
"""What reading a file may raise that was not written by `save`; it may come from anyone."""


class Damaged(HvdtrainError):
    """A checkpoint is incomplete, or its content is not what `save` wrote."""


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write `folder/step-NNNNNNNN`, then remove all but the newest `keep` checkpoints and the one with the best score.

    Raises OSError if the disk does not accept it; older checkpoints are untouched then. The parent of `folder` must
    exist: where a shared disk was unmounted, a new folder in its place would hide the loss.
    """
    folder.mkdir(exist_ok=True)
    final = folder / f"step-{checkpoint.position.step:08d}"
    unfinished = folder / f"{UNFINISHED}{final.name}-{os.getpid()}"
    for stale in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(stale, ignore_errors=True)
    unfinished.mkdir()
    contents = _contents(checkpoint)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    contents[MANIFEST] = json.dumps({"sha256": sums, "step": checkpoint.position.step}, indent=1).encode()
    for name, data in contents.items():
        _write(unfinished / name, data)
    _flush_folder(unfinished)
    _move_into_place(unfinished, final)
    _flush_folder(folder)
    _prune(folder, keep, newest=final)
    return final


def _contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The content of each of FILES."""
    state = asdict(checkpoint)
    del state["weights"]
    state["optimizer"] = checkpoint.optimizer._replace(arrays={})._asdict()
    contents = (
        to_bytes(checkpoint.weights),
        to_bytes(checkpoint.optimizer.arrays),
        json.dumps(state, indent=1).encode(),
    )
    return dict(zip(FILES, contents, strict=True))


def _write(path: Path, data: bytes) -> None:
    """Write a new file and flush it to disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _move_into_place(unfinished: Path, final: Path) -> None:
    """Rename the folder; a checkpoint of the same step, written before a resume, is removed."""
    old = _set_aside(final) if final.exists() else None
    unfinished.rename(final)
    if old:
        shutil.rmtree(old, ignore_errors=True)


def _set_aside(path: Path) -> Path:
    """Rename a checkpoint before it is removed, so that none is seen while parts of it are missing."""
    aside = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}-old")
    return path.rename(aside)


def _flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prune(folder: Path, keep: int, newest: Path) -> None:
    """Remove old checkpoints; first read the newest one back. Raises Damaged."""
    load(newest)
    steps = listed(folder)
    best = max(steps, key=lambda path: (_score(path), path.name))
    for path in steps[:-keep]:
        if path != best:
            shutil.rmtree(_set_aside(path), ignore_errors=True)


def listed(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, oldest first."""
    # For names too long to be a path os.path.isdir is False, while pathlib raises.
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if os.path.isdir(folder) else []


def _score(path: Path) -> float:
    """The score of a checkpoint, -1 if it cannot be read."""
    try:
        return float(json.loads(_read(path / "state.json"))["score"])
    except BROKEN:
        return -1.0


def load(path: Path) -> Checkpoint:
    """The checkpoint in folder `path`. Raises Damaged, with the reason, if it is not what `save` wrote."""
    contents = _verified(path)
    try:
        weights, arrays = (_arrays(contents[name]) for name in FILES[:2])
        state = json.loads(contents["state.json"])
        state["optimizer"] = OptimizerState(**{**state["optimizer"], "arrays": arrays})
        state["position"] = Position(**state["position"])
        state["classes"] = tuple(state["classes"])
        found = Checkpoint(weights=weights, **state)
        _check_values(found)
        return found
    except BROKEN as error:
        raise Damaged(f"{path}: damaged, or written by another version of hvdtrain ({error})") from None


def _check_values(found: Checkpoint) -> None:
    """Raise ValueError for a value that `save` never writes; correct sums do not prove who wrote it."""
    optimizer = found.optimizer
    counts = (*vars(found.position).values(), optimizer.updates)
    texts = (found.model, found.framework, found.optimizer_name, found.data, *found.classes)
    if (
        not all(type(count) is int and count >= 0 for count in counts)
        or not all(isinstance(text, str) for text in texts)
        or not all(type(number) in (int, float) and math.isfinite(number) for number in (found.score, optimizer.scale))
        or not isinstance(optimizer.extra, dict)
    ):
        raise ValueError("state.json has values that no run writes")


def network(path: Path, saved: Checkpoint) -> Network:
    """The network that a checkpoint, read from `path`, belongs to. Raises UserError if its shapes fit none."""
    known = NETWORKS.get(saved.model)
    shapes = {name: value.shape for name, value in saved.weights.items()}
    if not known or shapes != dict(known.parameters()) or len(saved.classes) != known.classes:
        raise UserError(
            f"{path}: its weights and classes are not those of {saved.model!r:.80}", "give the checkpoint of a run"
        )
    return known


def _arrays(data: bytes) -> Weights:
    return {name: np.array(value) for name, value in from_bytes(data).items()}


def _verified(path: Path) -> dict[str, bytes]:
    """The files of a checkpoint. Raises Damaged if one is missing or does not have the manifest's sum."""
    try:
        sums = dict(json.loads(_read(path / MANIFEST))["sha256"])
        contents = {name: _read(path / name) for name in FILES}
    except BROKEN as error:
        raise Damaged(f"{path}: incomplete ({error})") from None
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != sums.get(name):
            raise Damaged(f"{path}: {name} is not what was written (its SHA-256 differs from that in {MANIFEST})")
    return contents


def _read(path: Path) -> bytes:
    """The content of a file. Raises ValueError if it is not a regular file of at most LARGEST bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise ValueError(f"{path.name} is not a regular file of at most {LARGEST} bytes")
    return path.read_bytes()


def newest(path: Path) -> tuple[Path, Checkpoint]:
    """The checkpoint at `path`, or the newest intact one of the run in that folder; damaged ones are logged.

    Raises UserError if there is none.
    """
    folder = path / "checkpoints" if os.path.isdir(path / "checkpoints") else path
    candidates = [path] if os.path.isfile(path / MANIFEST) else listed(folder)[::-1]
    for candidate in candidates:
        try:
            return candidate, load(candidate)
        except Damaged as error:
            log.warning("damaged checkpoint: %s", error)
    raise UserError(
        f"{path}: no intact checkpoint there ({len(candidates)} damaged)",
        "give a run's folder or one of its checkpoints",
    )
